# What only an instructor has: the masters with their solutions, and grading. The zip of `make
# release` goes without this file.

SUBMISSIONS ?=
OUT ?=
ROSTER ?=
DUE ?=
WEEK ?=
LATE ?=

.PHONY: release grade class exercises mutants honest site book

release class site book:
	$(RUN) $@ $(ARGS)

# NB=03 for one chapter
exercises mutants honest:
	$(RUN) $@ $(NB) $(ARGS)

# SUBMISSIONS=folder, OUT=folder, ROSTER=class.csv, DUE=2026-11-20, WEEK=name, LATE=percent by day
grade:
	$(RUN) $@ '$(subst ','\'',$(SUBMISSIONS))' $(if $(OUT),--out $(call quoted,$(OUT))) \
		$(if $(ROSTER),--roster $(call quoted,$(ROSTER))) $(if $(DUE),--due $(call quoted,$(DUE))) \
		$(if $(WEEK),--week $(call quoted,$(WEEK))) $(if $(LATE),--late-percent '$(LATE)') $(ARGS)
