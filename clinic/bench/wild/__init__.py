"""A bench of attention in the wild: strangers' modules, and the truth about each, read by hand.

`cases` reads what is known, `sources` fetches the code, `loading` runs its definitions, `trial`
examines one case in a process of its own, `scoring` compares verdict and truth, `table` says what
may be concluded, `study` counts which bugs there are. Imports run in this order.
"""
