"""Studies of accuracy: trainings on two cores, with several seeds and their spread, as JSON and as pictures."""
