# Two commands are enough: `make lab` to learn, `make test` to check. Each makes .venv and installs
# what it needs, once; nothing is registered outside this folder. `make` alone lists the rest.

PYTHON ?= python3
NB ?=
FROM ?=
ARGS ?=

PY := .venv/bin/python
FIRST := notebooks/00_shapes_and_einops.ipynb

# A foreign package named `utils` in site-packages must not win over the course's own.
export PYTHONPATH = $(CURDIR):$(CURDIR)/clinic
unexport PYTHONHOME MPLBACKEND
test refresh bench clinic: export HF_HUB_OFFLINE = 1
# One thread for each of two processes: with more they get in each other's way and take far longer.
test refresh weights study clinic: export OMP_NUM_THREADS = 1
# The user's own start-up files for IPython must not change what a cell shows.
test: export IPYTHONDIR = $(CURDIR)/.venv/ipython

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help lab test progress update refresh bench clinic lint weights study photos drawings clean

help::
	@echo 'make lab        open the course in JupyterLab   (ARGS="--no-browser --port 8899" passes options on)'
	@echo 'make test       run every notebook, compare every output, run the tests'
	@echo 'make progress   show which exercises are done'
	@echo 'make update     bring a newer course into this folder, keep what you changed   (FROM=new.zip)'
	@echo 'make refresh    run notebooks and store what they show   (NB=03 for one, NB="03 04" for some)'
	@echo 'make bench      compare the speed with PyTorch and HuggingFace'
	@echo 'make clinic     try diagnose on the whole bank of right and broken modules'
	@echo 'make lint       check the style of the code, notebooks too'
	@echo 'make weights    train the model in resources/ anew'
	@echo 'make study      train every bug of chapter 08 anew, some minutes'
	@echo 'make photos     make resources/test_images.npy anew'
	@echo 'make drawings   draw the pictures in img/ anew'
	@echo 'make clean      remove .venv and caches; notebooks and data stay'
	@echo
	@echo 'The first call installs about 1.5 GB into .venv (more with CUDA). Another Python: make lab PYTHON=python3.12'

# --------------------------------------------------------------------------------- installation
# A stamp is written only after everything was installed. When .venv came here with a moved folder,
# or its Python is gone, the stamps count for nothing and it is built anew.

HOME_OF_VENV := $(shell $(PY) -c pass 2>/dev/null && cat .venv/made-in 2>/dev/null)
ifneq "$(HOME_OF_VENV)" "$(CURDIR)"
.PHONY: .venv/lab.stamp .venv/grading.stamp .venv/dev.stamp
MAKE_VENV = $(call venv)
endif

define venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	echo 'The course needs Python 3.11 or newer; "$(PYTHON)" is' \
		"$$($(PYTHON) --version 2>/dev/null || echo not there)." >&2; \
	for name in python3.12 python3.13 python3.11 python3.14; do \
		if command -v $$name >/dev/null; then \
			echo "This machine has $$name. Type: make $(or $(MAKECMDGOALS),lab) PYTHON=$$name" >&2; exit 1; \
		fi; \
	done; \
	echo 'Install one (python.org, or your system'"'"'s packages), then: make $(or $(MAKECMDGOALS),lab) PYTHON=python3.12' >&2; \
	exit 1; }
@if [ -e .venv ]; then echo 'make: .venv is incomplete or was made elsewhere: building it anew'; fi
@rm -rf .venv
@$(PYTHON) -m venv .venv || { \
	rm -rf .venv; \
	echo '$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu its part "venv" is a package of its own: python3-venv.' >&2; \
	exit 1; }
endef

# No question about news, no look for updates: after the installation the course needs no network.
SETTINGS := {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false}}

# $(1): a requirements file. The stamps go first: an interrupted installation leaves none, and since
# pip may have stopped half-way through a package, the next call begins again.
define install
$(MAKE_VENV)
@rm -f .venv/*.stamp .venv/made-in
@echo 'make: installing $(1) into .venv (minutes the first time, then never again)'
@env -u PYTHONPATH $(PY) -m pip install --disable-pip-version-check -r $(1)
@mkdir -p .venv/share/jupyter/lab/settings
@echo '$(SETTINGS)' > .venv/share/jupyter/lab/settings/overrides.json
@printf '%s' '$(subst ','\'',$(CURDIR))' > .venv/made-in
endef

.venv/lab.stamp: requirements.txt pyproject.toml
	$(call install,requirements.txt)
	@touch $@

# What testing needs includes what learning and grading need.
.venv/dev.stamp: requirements-dev.txt requirements.txt pyproject.toml $(wildcard requirements-grading.txt)
	$(call install,requirements-dev.txt)
	@touch .venv/lab.stamp .venv/grading.stamp $@

# ------------------------------------------------------------------------------------- commands

# The root of the server is this folder, so that the notebooks may show ../img/*.svg. Which tabs are
# open is kept apart from what the user does elsewhere.
lab: .venv/lab.stamp
	$(PY) -m jupyterlab \
		--ServerApp.root_dir='$(subst ','\'',$(CURDIR))' \
		--ServerApp.preferred_dir='$(subst ','\'',$(CURDIR))/notebooks' \
		--LabApp.workspaces_dir='$(subst ','\'',$(CURDIR))/.venv/workspaces' \
		--LabApp.default_url=/lab/tree/$(FIRST) \
		$(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

test: .venv/dev.stamp
	@echo '== Notebooks: every cell runs again and every output is compared. Tests: what nbval cannot see.'
	$(PY) -m pytest --nbval notebooks tests -n 2 --dist loadfile $(ARGS)

progress: .venv/lab.stamp
	$(PY) tools/progress.py

update: .venv/lab.stamp
	$(PY) tools/update.py $(if $(FROM),'$(subst ','\'',$(FROM))')

refresh: .venv/lab.stamp
	$(PY) tools/refresh.py $(NB) $(ARGS)

bench: .venv/dev.stamp
	$(PY) tools/bench.py $(ARGS)

clinic: .venv/dev.stamp
	$(PY) tools/clinic.py $(ARGS)

lint: .venv/lab.stamp
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

weights: .venv/lab.stamp
	$(PY) resources/make_digits_model.py

study: .venv/lab.stamp
	$(PY) resources/make_clinic_study.py

photos: .venv/dev.stamp
	$(PY) resources/make_test_images.py

drawings: .venv/lab.stamp
	$(PY) img/make_drawings.py

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build *.egg-info
	find . -path ./.git -prune -o -type d \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# What only an instructor has: the masters with their solutions, and grading.
-include instructor.mk
