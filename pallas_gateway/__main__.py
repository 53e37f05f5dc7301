"""`python -m pallas_gateway` is `pallas-gateway`."""

from pallas_gateway.cli.app import main

if __name__ == "__main__":
    main()
