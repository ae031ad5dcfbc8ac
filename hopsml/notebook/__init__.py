"""What a person sees in a notebook: one display for each run, updated in place, and the magics of ``%load_ext hopsml``.

frontend.py   whether a notebook is looking                      pure, but for one look at IPython
story.py      changes of a run -> what has happened so far       pure
view.py       story and workers -> what is shown                 pure
html.py, text.py   a view as HTML and as plain text              pure
display.py    the hands: an observer of a run, a thread, IPython
magics.py, listing.py, tensorboard.py   %runs, %logs, %tensorboard_run
"""
