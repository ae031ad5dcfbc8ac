"""Files that are found in the working directory by their name: whether another user can have put them there.

In a folder that all users may write to, such as ``/tmp``, anybody can create ``conf/local.yaml`` or ``.hopsml``. A folder of
another user in which this user works on purpose, such as a clone that root builds, is not suspicious: programs in it
are that user's, too.
"""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

from hopsml.core.variables import SETTINGS


def name_of_user(uid: int) -> str:
    """Return the name of a user, or the uid as text if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def why_foreign(path: Path, above: Path) -> str:
    """Return why a file or folder below a working directory is not this user's, as a clause; "" if it may be used.

    It may belong to this user, to root, to an owner of ``HOPSML_TRUSTED_OWNERS``, or to the owner of the working
    directory if only that one can write there. Not all users may be able to write to it.

    Args:
        path: The file or folder, which may not exist: then it may be used. Links are followed.
        above: The working directory.
    """
    try:
        facts, directory = path.stat(), above.stat()
    except OSError:
        return ""
    accepted = {os.geteuid(), 0}
    if not directory.st_mode & stat.S_IWOTH:
        accepted.add(directory.st_uid)
    if facts.st_uid not in accepted and name_of_user(facts.st_uid) not in SETTINGS.trusted_owners:
        return f"{path} belongs to {name_of_user(facts.st_uid)}"
    if facts.st_mode & stat.S_IWOTH and not facts.st_mode & stat.S_ISVTX:
        return f"{path} can be written by all users"
    return ""
