"""Attacks on the grader, as data: what a student's code may try, and the sign that it worked.

attack (what one is) <- lying, reaching, forging, harming (the attacks) <- every <- naive (a grader
without any guard, on which each of them must work); outside is what they attack.
"""
