# Two commands are enough: `make lab` to learn, `make test` to check. `make` alone lists the rest.
# Each is short for `python3 -m tools COMMAND`, which works without make, too.

PYTHON ?= python3
NB ?=
FROM ?=
ARGS ?=

quoted = $(if $(1),'$(subst ','\'',$(1))')
RUN = @command -v $(PYTHON) >/dev/null || { echo 'make: there is no $(PYTHON). Install Python 3.11' \
	'to 3.14, or name the one that you have: make lab PYTHON=python3.12' >&2; exit 1; }; \
	$(PYTHON) -m tools

.DEFAULT_GOAL := help
.PHONY: help lab test progress readme lint bench clinic wild browser weights study parts photos \
	drawings install here clean refresh slides update colab

# ARGS="--no-browser --port 8899" passes options on
help lab test progress readme lint bench clinic wild browser weights study parts photos drawings \
install here clean:
	$(RUN) $@ $(ARGS)

# NB=03 for one chapter, NB="03 04" for several
refresh slides:
	$(RUN) $@ $(NB) $(ARGS)

# FROM=new.zip; for colab the address of a git repository
update colab:
	$(RUN) $@ $(call quoted,$(FROM)) $(ARGS)

-include instructor.mk
