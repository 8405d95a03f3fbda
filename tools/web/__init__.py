"""The library of `make site` and `make book`: the course as pages that need no server.

pages turns a notebook into a page, catalogue and indexes make further pages, sources writes all of
them for Sphinx, and links checks the result.
"""
