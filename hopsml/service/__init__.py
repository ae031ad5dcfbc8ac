"""Job service: accepts jobs for a cluster, schedules and runs them, and displays jobs and runs in a browser.

All modules except ``scheduler`` need the extra ``service``; importing ``hopsml`` imports none of them.
"""
