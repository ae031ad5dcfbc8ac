"""Runs in the browser: what a page is told (``browse``), by which addresses (``rest``), and the page itself (``web``).

What is served here needs the extra ``service``; importing ``hopsml`` imports nothing of it.
"""
