"""``python -m hopsml COMMAND``: the command line, where the environment's ``bin`` is not on the path."""

from hopsml.cli import main

if __name__ == "__main__":
    main()
