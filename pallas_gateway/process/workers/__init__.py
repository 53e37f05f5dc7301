"""Several processes behind the same ports: the parent that keeps them running, and what each has of the others."""
