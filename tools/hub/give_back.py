"""Give feedback back to the students of a hub: HOME/feedback/WEEK.html, mode 600.

OUT is the folder of results of `make grade`. The pages are those of `exports/WEEK feedback.zip`,
about one week. A page goes to the account with the student's name and id in the class list; if two
accounts may be meant, it goes to none. It never replaces a file of the student.
"""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Sequence

from tools.commands import Refusal, parse_arguments
from tools.grading import exports
from tools.grading.grade import results_of_earlier_run
from tools.grading.gradebook import Gradebook
from tools.grading.roster import Person
from tools.grading.student_report import Result
from tools.hub.accounts import Account
from tools.hub.homes import HomeFailed, Hub, one_line

FOLDER = "feedback"  # in a home
MARK = ": feedback</title>"  # in the head of each page


def owners(hub: Hub, results: list[Result]) -> dict[str, Account]:
    """Return the account of each student with results, by the name of the page."""
    matching, accounts = hub.matching(), {a.username: a for a in hub.accounts}
    found = {}
    for result in results:
        student = result.student
        whose = matching.whose(student.name, exports.email(student.row) or student.id)
        if isinstance(whose, Person):
            found[result.page] = accounts[whose.row["username"]]
    pages = Counter(found.values())
    return {page: account for page, account in found.items() if pages[account] == 1}


def give(hub: Hub, account: Account, name: str, page: bytes) -> str:
    """Write a page into a home; return a text about it."""
    place = f"{account.home}/{FOLDER}"
    try:
        answer = hub.run(account, "write", place, name, MARK, given=page).decode(errors="replace")
    except HomeFailed as error:
        answer = str(error)
    is_written = answer == "written\n"
    return f"{FOLDER}/{name}" if is_written else f"not given back: {one_line(answer).strip()}"


def main(arguments: Sequence[str] = ()) -> int:
    options = parse_arguments("give-back", arguments)
    hub, out = Hub.read(options.hub), results_of_earlier_run(options.out)
    try:
        book = Gradebook(out)
        week = book.named(options.week) if options.week else book.weeks[-1]
    except ValueError as error:
        raise Refusal(str(error)) from None
    results, count = [r for r in book.results() if r.of_week(week.name).grades], 0
    accounts = owners(hub, results)
    with zipfile.ZipFile(out / exports.FOLDER / f"{week.name} feedback.zip") as pages:
        for result in results:
            said = "not given back: no account, or several"
            if account := accounts.get(result.page):
                page = pages.read(f"{result.page}/feedback.html")
                said = give(hub, account, f"{week.name}.html", page)
                count += not said.startswith("not ")
            print(f"{one_line(result.student.name)}: {said}", flush=True)
    print(f"{count} of {len(results)} pages given back")
    return count < len(results)
