"""Entry of the bridge: python -u BRIDGE.zip FD."""

import sys

from bridge import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
