# What only an instructor has: the source notebooks with their solutions, and grading. The zip of
# `make release` does not contain this file.

SUBMISSIONS ?=
OUT ?=
ROSTER ?=
DUE ?=
WEEK ?=
LATE ?=
SCHEDULER ?=
NAME ?=
HUB ?=

.PHONY: release class site book exercises mutants honest new-exercise new-chapter grade \
	hub hub-test collect give-back

release class site book hub-test:
	$(RUN) $@ $(ARGS)

# NB=03 for one chapter
exercises mutants honest new-exercise:
	$(RUN) $@ $(NB) $(ARGS)

# NAME=state_space_models
new-chapter:
	$(RUN) $@ $(call quoted,$(NAME)) $(ARGS)

# SUBMISSIONS=folder, OUT=folder, ROSTER=class.csv, DUE=2026-11-20, WEEK=name, LATE=percent by day,
# SCHEDULER=tcp://host:8786
grade:
	$(RUN) $@ $(call quoted,$(SUBMISSIONS)) $(if $(OUT),--out $(call quoted,$(OUT))) \
		$(if $(ROSTER),--roster $(call quoted,$(ROSTER))) $(if $(DUE),--due $(call quoted,$(DUE))) \
		$(if $(WEEK),--week $(call quoted,$(WEEK))) $(if $(LATE),--late-percent $(call quoted,$(LATE))) \
		$(if $(SCHEDULER),--scheduler $(call quoted,$(SCHEDULER))) $(ARGS)

# HUB=folder, ROSTER=class.csv
hub:
	$(RUN) $@ $(if $(HUB),--hub $(call quoted,$(HUB))) \
		$(if $(ROSTER),--roster $(call quoted,$(ROSTER))) $(ARGS)

# HUB=folder, WEEK=name, OUT=folder, and for collect NB="03 04"
collect give-back:
	$(RUN) $@ $(NB) $(if $(HUB),--hub $(call quoted,$(HUB))) \
		$(if $(WEEK),--week $(call quoted,$(WEEK))) $(if $(OUT),--out $(call quoted,$(OUT))) $(ARGS)
