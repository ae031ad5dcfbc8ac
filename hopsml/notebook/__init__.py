"""Notebook integration: a live display of each run, updated in place, and the magics of ``%load_ext hopsml``.

run_timeline.py   changes of a run -> the run's timeline                   pure
run_view.py       status of a run or search -> view                        pure
view.py           data types of a view                                     pure
html.py           a view as HTML and as plain text                         pure
style.py          HTML elements, colours, sizes                            pure
display.py        observer of a run or a search, thread, IPython
magics.py, tensorboard.py   %runs, %logs, %tensorboard_run, %hopsml_ui
"""
