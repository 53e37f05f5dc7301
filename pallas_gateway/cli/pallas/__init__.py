"""The older name of this program: the wheel has this folder as the package `pallas`."""
