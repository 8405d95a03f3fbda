"""The library of `make site` and `make book`: the course as pages that need no server.

Read pages (a notebook as a page), catalogue and indexes (pages that no notebook holds), then
sources, which writes all of them for Sphinx, and links, which checks what Sphinx has made.
"""
