# For instructors and contributors; the zip of `make release` goes without this file.

SUBMISSIONS ?=
OUT ?=

.PHONY: exercises release grade class mutants

help::
	@echo
	@echo 'For instructors:'
	@echo 'make release    make the zip to hand out, without solutions, in build/'
	@echo 'make grade      grade handed-in notebooks: make grade SUBMISSIONS=folder   (OUT=folder, ARGS="--chapter 03")'
	@echo 'make class      rehearse it: thirty made-up students, some broken, some cheating'
	@echo 'make exercises  make notebooks/exercises from the masters in notebooks/solutions   (NB=03 for one)'
	@echo 'make mutants    change every solution in one place at a time: does its check see it?   (NB=03 for one)'

.venv/grading.stamp: requirements-grading.txt requirements.txt pyproject.toml
	$(call install,requirements-grading.txt)
	@touch .venv/lab.stamp $@

exercises: .venv/grading.stamp
	$(PY) tools/exercises.py $(NB) $(ARGS)

release: .venv/grading.stamp
	$(PY) tools/release.py

grade: .venv/grading.stamp
	@$(PY) tools/grade.py '$(subst ','\'',$(SUBMISSIONS))' $(if $(OUT),--out '$(subst ','\'',$(OUT))') $(ARGS)

class: .venv/grading.stamp
	$(PY) tools/class_of_thirty.py $(ARGS)

mutants: export OMP_NUM_THREADS = 1
mutants: export PYTHONPATH = $(CURDIR):$(CURDIR)/clinic:$(CURDIR)/tools:$(CURDIR)/tests/test_course
mutants: .venv/dev.stamp
	$(PY) tests/test_checks/mutants.py $(NB)
