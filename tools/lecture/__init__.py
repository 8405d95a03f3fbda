"""Slides from chapters: the content of each slide (deck, prose), speaker notes (speaker_notes,
wrong_answers), HTML pages (reveal_page) and PDFs (printing).
"""
