"""Bugs on purpose in the scheduler; see `mutants`."""

from tests.mutation.mutants import Mutant

ADMISSION = "kvdist/sched/admission.py"
BUDGET = "kvdist/sched/budget.py"
LOADS = "kvdist/sched/loads.py"
OUTCOME = "kvdist/sched/outcome.py"
PLANNER = "kvdist/sched/planner.py"
PLANNING = "kvdist/sched/planning.py"
ROSTER = "kvdist/sched/roster.py"
SCHEDULER = "kvdist/sched/scheduler.py"
SEQUENCE = "kvdist/sched/sequence.py"

FAILED = "tests/unit/sched/test_failed_steps.py"
LOADS_TEST = "tests/unit/sched/test_loads.py"
PLANNER_TEST = "tests/unit/sched/test_planner.py"
SCENARIOS = "tests/scenarios/test_scheduler.py"
SCHEDULER_TEST = "tests/unit/sched/test_scheduler.py"

SCHED_MUTANTS = [
    Mutant(
        "T2: a spoilt load runs on",
        ROSTER,
        "        elif load.spoilt:",
        "        elif False:",
        FAILED,
        always=True,
    ),
    Mutant(
        "T8: what the last token writes is published with the load",
        LOADS,
        "min(load.num_tokens, request.num_tokens - 1)",
        "load.num_tokens",
        LOADS_TEST,
    ),
    Mutant(
        "T2: a failed load's blocks are free at once",
        LOADS,
        "self._manager.change_hold(load.block_ids, HoldKind.PULL, HoldKind.QUARANTINE)",
        "self._manager.end_hold(load.block_ids, HoldKind.PULL)",
        LOADS_TEST,
    ),
    Mutant(
        "T20: who is aborted gives up blocks in which bytes land",
        ROSTER,
        "        if sequence.request_id not in self.loads:\n",
        "        if True:\n",
        PLANNER_TEST,
    ),
    Mutant(
        "S26: a stale output is believed",
        SEQUENCE,
        "        self.attempt += 1\n",
        "",
        SCENARIOS,
        always=True,
    ),
    Mutant(
        "T1: a failed step withdraws nothing",
        SCHEDULER,
        "set(self.manager.withdraw_step(failed.number))",
        "set()",
        FAILED,
    ),
    Mutant(
        "T1: a load that is done keeps what was withdrawn",
        SCHEDULER,
        "if any(not withdrawn.isdisjoint(table) for table in self.roster.tables(sequence)):",
        "if False:",
        FAILED,
    ),
    Mutant(
        "S26: rows that a lost plan named stay",
        SCHEDULER,
        "                self.roster.rows.drop_again(step)\n",
        "",
        FAILED,
    ),
    Mutant(
        "S26: a row that has come back is dropped",
        SCHEDULER,
        "        if not step.failed:  # else",
        "        if True:  # else",
        FAILED,
    ),
    Mutant(
        "S16: rejected drafts count as computed",
        SCHEDULER,
        "        request.num_computed_tokens -= outcome.num_rejected\n",
        "",
        SCHEDULER_TEST,
    ),
    Mutant(
        "S10: copies stay pinned",
        SCHEDULER,
        "                self.manager.release_block_copies(step.block_copies)\n",
        "                pass\n",
        PLANNER_TEST,
    ),
    Mutant(
        "planning stops where somebody ended meanwhile",
        SCHEDULER,
        "            if self.steps or not step.turns:\n                return None\n",
        "            return None\n",
        SCHEDULER_TEST,
    ),
    Mutant(
        "S27: nobody waits for blocks on their way",
        PLANNER,
        "        if self._manager.block_pool.steps.waiting_blocks():",
        "        if False:",
        PLANNER_TEST,
    ),
    Mutant(
        "who lacks a block gives up what its own step may bring",
        PLANNER,
        "            if victim is sequence and sequence.num_turns_in_flight:",
        "            if False:",
        PLANNER_TEST,
    ),
    Mutant(
        "who is read along is preempted",
        PLANNER,
        "            if not self._remote_cache.may_preempt(victim.request):\n"
        '                self._note_wait(sequence, "reader")\n'
        "                return None\n",
        "",
        PLANNER_TEST,
    ),
    Mutant(
        "S10: a load behind a hit inside a block",
        PLANNER,
        "        if num_local_tokens % self._manager.config.scheduler_block_size:",
        "        if False:",
        PLANNER_TEST,
    ),
    Mutant(
        "more tokens are planned than it may have",
        PLANNER,
        "if target >= sequence.max_len:",
        "if False:",
        PLANNER_TEST,
    ),
    Mutant(
        "drafts are passed by with overlap",
        PLANNER,
        "if sequence.num_pending_tokens and self.max_drafts:",
        "if False:",
        PLANNER_TEST,
    ),
    Mutant(
        "states are loaded to the last token",
        PLANNER,
        "(not self._loads_whole)",
        "0",
        PLANNER_TEST,
    ),
    Mutant(
        "S15: a load is published when it begins",
        PLANNER,
        "            delay_cache_blocks=True,\n",
        "",
        PLANNER_TEST,
    ),
    Mutant(
        "S17: all may enter",
        PLANNER,
        "self.admission.fits(sequence, hit, self._admitted(), watermark)",
        "True",
        SCENARIOS,
    ),
    Mutant(
        "S17: nothing is reserved",
        PLANNER,
        "self.admission.fits(sequence, hit, self._admitted(), watermark)",
        "self.admission.fits(sequence, hit, (), watermark)",
        PLANNER_TEST,
    ),
    Mutant(
        "S17: nothing is reserved for block owners",
        PLANNER,
        "        yield from self._waiting.owners\n",
        "",
        PLANNER_TEST,
    ),
    Mutant(
        "S17: nothing is reserved for loads",
        PLANNER,
        "        yield from self._roster.loads.sequences()\n",
        "",
        PLANNER_TEST,
    ),
    Mutant(
        "S17: lookahead is not reserved",
        ADMISSION,
        "return min(wanted, sequence.max_len) + self._lookahead",
        "return min(wanted, sequence.max_len)",
        "tests/unit/sched/test_admission.py",
    ),
    Mutant(
        "who is not known yet holds up the others",
        PLANNER,
        'self._note_wait(sequence, "remote")\n            return True',
        'self._note_wait(sequence, "remote")\n            return False',
        PLANNER_TEST,
    ),
    Mutant(
        "who is suspect runs with the others",
        PLANNER,
        "        return bool(planning.step.turns)\n",
        "        return False\n",
        FAILED,
    ),
    Mutant(
        "any success clears a suspect",
        SEQUENCE,
        "        if end >= self.num_failed_tokens:\n",
        "        if True:\n",
        FAILED,
    ),
    Mutant(
        "a chunk runs over the end of a state's block",
        BUDGET,
        "            if begin % size:\n",
        "            if False:\n",
        "tests/unit/sched/test_budget.py",
    ),
    Mutant(
        "S13: nothing is in flight",
        PLANNING,
        "        request.num_in_flight_tokens += turn.num_tokens\n",
        "",
        SCHEDULER_TEST,
    ),
    Mutant(
        "S24: rows of finished sequences stay",
        PLANNING,
        "            ids = self._finished if sequence.status.finished else self._preempted\n",
        "            ids = []\n",
        "tests/unit/sched/test_planning.py",
    ),
    Mutant(
        "T7: a state that moves on is lent",
        ROSTER,
        "return 0 if overtaken else num_settled",
        "return num_settled",
        PLANNER_TEST,
    ),
    Mutant(
        "what is in flight of a worthless sequence counts",
        ROSTER,
        "sequence.attempt += 1  # what",
        "pass  # what",
        FAILED,
    ),
    Mutant(
        "other tokens than the drafts are taken",
        OUTCOME,
        " or tokens[:num_right] != drafts[:num_right]",
        "",
        "tests/unit/sched/test_outcome.py",
    ),
]
