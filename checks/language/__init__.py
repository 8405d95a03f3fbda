"""The languages in which checks speak: one file each. English has every sentence."""
