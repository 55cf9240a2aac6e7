"""Where the command line starts, as `tuner` and as `python -m tuner`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, and end quietly where Ctrl-C comes before it is imported: from a cold disk that takes."""
    try:
        from tuner import cli
    except KeyboardInterrupt:
        if sys.stderr is not None:  # None where a shell closed it
            sys.stderr.write("interrupted\n")
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
