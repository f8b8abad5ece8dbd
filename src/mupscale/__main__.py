"""`python -m mupscale`."""

from mupscale.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
