"""The languages in which checks speak: one file each. English has every sentence."""

from checks.engine.message import register
from checks.language import en

register("en", en.SENTENCES, en.FORMS)
