# For instructors and contributors; the zip of `make release` goes without this file.

.PHONY: exercises release mutants

help::
	@echo
	@echo 'For instructors:'
	@echo 'make exercises  make notebooks/exercises from the masters in notebooks/solutions   (NB=03 for one)'
	@echo 'make release    make the zip to hand out, without solutions, in build/'
	@echo 'make mutants    change every solution in one place at a time: does its check see it?   (NB=03 for one)'

exercises: .venv/dev.stamp
	$(PY) tools/exercises.py $(NB) $(ARGS)

release: .venv/dev.stamp
	$(PY) tools/release.py

mutants: export OMP_NUM_THREADS = 1
mutants: .venv/dev.stamp
	$(PY) tests/mutants.py $(NB)
