"""Events of a running call, and how they reach its client."""
