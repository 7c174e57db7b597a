"""Counts the faults that a test injects, and the times that jobs took to recover."""
import statistics


class FaultTable:
    """`measured` says from when to when a recovery is measured."""

    def __init__(self, measured):
        self.measured = measured
        self.rows = {}

    def add(self, fault, met, seconds):
        """`met`: the job was not over; `seconds`: those of the recoveries."""
        row = self.rows.setdefault(fault, {"late": 0, "met": 0, "seconds": []})
        row["met" if met else "late"] += 1
        row["seconds"] += seconds

    def print(self):
        width = max(map(len, [*self.rows, "all"]))
        print(f"{'fault':{width}}   met  too late  recovered  median s  largest s")
        for fault, row in sorted(self.rows.items()):
            self._print(fault, width, row)
        rows = self.rows.values()
        self._print("all", width, {
            "met": sum(row["met"] for row in rows),
            "late": sum(row["late"] for row in rows),
            "seconds": [each for row in rows for each in row["seconds"]]})
        print(f"recovery: {self.measured}", flush=True)

    @staticmethod
    def _print(fault, width, row):
        seconds = row["seconds"]
        print(f"{fault:{width}}  {row['met']:4}  {row['late']:8}  {len(seconds):9}  "
              + (f"{statistics.median(seconds):8.2f}  {max(seconds):9.2f}"
                 if seconds else f"{'-':>8}  {'-':>9}"))
