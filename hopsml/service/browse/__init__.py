"""What a page is told of the runs of a project, made from their directories alone. Nothing here knows of HTTP."""
