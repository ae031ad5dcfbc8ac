"""Module whose import starts a thread, so that the process must not fork afterwards."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
