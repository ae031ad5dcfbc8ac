"""What a person sees in a notebook: one display for each run, updated in place, and the magics of ``%load_ext hopsml``.

frontend.py   whether a notebook is looking                      pure, but for one look at IPython
story.py      changes of a run -> what has happened so far       pure
history.py    one metric over the steps, bounded                 pure
run_view.py, search_view.py   how it stands -> what is shown     pure
view.py       what can be shown                                  pure
html.py, text.py   a view as HTML and as plain text              pure
style.py, curve.py   how all of it looks; a curve as SVG         pure
display.py    an observer of a run or a search, a thread, IPython
magics.py, listing.py, tensorboard.py   %runs, %logs, %tensorboard_run
"""
