"""What becomes of accuracy: trainings on two cores, with seeds and spread, as JSON and as pictures."""
