"""Changes of libraries: repairs and fast paths. The registry checks, installs, switches and closes them."""
