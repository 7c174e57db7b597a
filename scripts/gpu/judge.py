"""Turns the status and the output of a part of gpu_check into an outcome.

In addition to its status, a program may print lines such as:

    RESULT {"what": …}   a number for the report
    LAYER NAME           the layer at fault, where the program knows better
    skipped: REASON      with status 77: this machine cannot run the part
"""
import json
import re

PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"
SKIP_STATUS = 77

# The tag of `lockstep run` before each line of a rank.
RANK = re.compile(r"^\[rank (\d+)\] ?")
TESTS_PASSED = re.compile(r"^\[  PASSED  \] (\d+) tests?\.", re.M)


def results_in(text):
    found = []
    for line in text.splitlines():
        line = RANK.sub("", line)
        if line.startswith("RESULT "):
            try:
                found.append(json.loads(line[len("RESULT "):]))
            except ValueError:
                continue
    return found


def missed_in(text):
    """The rows of the report that miss their targets."""
    missed = [row["what"] for row in results_in(text) if row.get("met") is False]
    return f"missed: {'; '.join(missed)}" if missed else ""


def layer_in(text):
    found = re.findall(r"^LAYER (.+)$", text, re.M)
    return found[-1] if found else ""


def by_rank(text):
    """The lines of each rank without their tags."""
    lines = {}
    for line in text.splitlines():
        match = RANK.match(line)
        lines.setdefault(match[1] if match else "", []).append(
            RANK.sub("", line))
    return ["\n".join(of) for of in lines.values()]


def skips_in(text):
    """The reasons that GoogleTest gives, with their number, over all ranks."""
    reasons = {}
    for lines in by_rank(text):
        for reason in re.findall(r": Skipped\n(.*)", lines):
            reasons[reason.strip()] = reasons.get(reason.strip(), 0) + 1
    return reasons


def what_failed(text):
    """The names of tests that failed, or of targets, or the last line."""
    names = dict.fromkeys(
        name for rank in by_rank(text)
        for name in re.findall(r"^\[  FAILED  \] ([\w/]+\.[\w/]+)", rank, re.M))
    if names:
        return ", ".join(names)
    if missed_in(text):
        return missed_in(text)
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:200] if len(lines) > 1 else "it printed nothing"


def verdict(part, status, text, seconds):
    """An outcome, and the reason where the outcome does not say it."""
    if status is None:
        return FAILED, f"it did not end within {seconds:.0f} s"
    if status == SKIP_STATUS:
        reason = re.findall(r"^skipped: (.*)$", text, re.M)
        return SKIPPED, reason[-1] if reason else "it gave no reason"
    if status != 0:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return FAILED, f"{how}: {what_failed(text)}"
    if part.expects and not re.search(part.expects, text, re.M):
        return FAILED, f'nothing it printed is like "{part.expects}"'
    if missed_in(text):
        return FAILED, missed_in(text)
    return of_tests(part, text)


def of_tests(part, text):
    """Skips are failures, except those that this card requires."""
    passed = [int(count) for rank in by_rank(text)
              for count in TESTS_PASSED.findall(rank)]
    skips = skips_in(text)
    if not passed and not skips:
        return PASSED, ""
    other = {reason: count for reason, count in skips.items()
             if not any(re.fullmatch(pattern, reason)
                        for pattern in part.may_skip)}
    if other:
        told = "; ".join(f"{reason} ({count})" for reason, count in other.items())
        return SKIPPED, told
    if sum(passed) == 0:
        why = f"; skipped: {'; '.join(skips)}" if skips else ""
        return FAILED, f"no test ran{why}"
    told = f"{max(passed)} tests"
    if skips:
        told += f", {sum(skips.values())} skipped as they may: {'; '.join(skips)}"
    return PASSED, told
