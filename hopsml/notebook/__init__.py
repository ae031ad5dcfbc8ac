"""Notebook integration: a live display of each run, updated in place, and the magics of ``%load_ext hopsml``.

frontend.py   detection of a notebook's front end                pure, except for a check of IPython
story.py      changes of a run -> the run's timeline             pure
history.py    bounded history of one metric over the steps       pure
run_view.py, search_view.py   status of a run or search -> view  pure
view.py       data types of a view                               pure
html.py, text.py   a view as HTML and as plain text              pure
style.py      HTML elements, colours, sizes                      pure
display.py    observer of a run or a search, thread, IPython
magics.py, project_page.py, tensorboard.py   %runs, %logs, %tensorboard_run, %hopsml_ui
"""
