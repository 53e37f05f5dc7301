"""A file for each fault of a library. The day the library is mended, the file and its test are deleted."""
