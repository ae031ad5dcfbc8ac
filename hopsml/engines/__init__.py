"""Start and supervision of drivers, for the job service and for Airflow's tasks alike."""
