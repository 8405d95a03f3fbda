# What only an instructor has: the masters with their solutions, and grading. The zip of `make
# release` goes without this file.

SUBMISSIONS ?=
OUT ?=

.PHONY: release grade class exercises mutants

release class:
	$(RUN) $@ $(ARGS)

# NB=03 for one chapter
exercises mutants:
	$(RUN) $@ $(NB) $(ARGS)

# SUBMISSIONS=folder, OUT=folder
grade:
	$(RUN) $@ '$(subst ','\'',$(SUBMISSIONS))' $(if $(OUT),--out $(call quoted,$(OUT))) $(ARGS)
