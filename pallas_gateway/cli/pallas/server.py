"""`python -m pallas.server` is `pallas`: service files of the older program name it."""

from pallas_gateway.cli.app import pallas_main

if __name__ == "__main__":
    pallas_main()
