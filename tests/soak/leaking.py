"""Program that leaks one resource of the named kind for each line on its standard input, and answers with a line."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any


def main() -> None:
    """Leak a resource for each line of the input, and print an answer."""
    folder, leaked = Path(sys.argv[1]), list[Any]()
    for line in sys.stdin:
        match line.strip():
            case "objects":
                leaked.append(bytearray(42_000))
            case "descriptors":
                leaked.append(open("/dev/null"))  # noqa: SIM115
            case "threads":
                threading.Thread(target=threading.Event().wait, daemon=True).start()
            case "files":
                (folder / f"left-{len(list(folder.iterdir()))}").touch()
        print("done", flush=True)


if __name__ == "__main__":
    main()
