"""Command line as ``python -m hopsml COMMAND``, for environments whose ``bin`` is not on the path."""

from hopsml.cli import main

if __name__ == "__main__":
    main()
