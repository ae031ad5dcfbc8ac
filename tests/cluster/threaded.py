"""To import this starts a thread, behind which nothing may be forked."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
