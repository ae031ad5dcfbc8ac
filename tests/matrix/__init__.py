"""Contract that each supported combination of versions fulfils (``make matrix``)."""
