"""Guards, each taken out in turn: the test that is named beside it must fail.

    python -m tests.mutants            all of them
    python -m tests.mutants mark       one

A guard of a script stands between `-- guard: NAME` and `-- end guard`. The mutant is made in a copy of the
project in a temporary folder; nothing here is changed. Exit code 0 if every mutant was killed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from celery_singlebeat.testing.programs import ServerNotFoundError, find_postgres, find_redis_server

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Mutant:
    """One change to one file, and the tests that must notice."""

    name: str
    harm: str
    file: str
    change: Callable[[str], str]
    killers: tuple[str, ...]
    #: Finds the server that the killers need, or raises `ServerNotFoundError`.
    server: Callable[[], Path] = find_redis_server


def without_guard(name: str) -> Callable[[str], str]:
    """Take a guard out of a script."""

    def change(text: str) -> str:
        return re.sub(rf"-- guard: {name}\n.*?-- end guard", "", text, flags=re.DOTALL)

    return change


def replaced(old: str, new: str) -> Callable[[str], str]:
    """Replace a piece of code that stands there exactly once."""

    def change(text: str) -> str:
        if text.count(old) != 1:
            raise AssertionError(f"{old!r} stands there {text.count(old)} times")
        return text.replace(old, new)

    return change


LUA = "celery_singlebeat/store/lua"
SLOTS, LEASES = "tests/store/test_slot_contract.py", "tests/store/test_lease_contract.py"
DISPATCHER, LINES = "celery_singlebeat/beat/dispatcher.py", "celery_singlebeat/beat/lines.py"
VERDICT, JUDGED = "celery_singlebeat/policy/slots.py", "tests/policy/test_slots.py"
VERDICTS, SIMULATED = "tests/beat/test_verdicts.py", "tests/beat/test_missed_runs.py"
LOCKS = "tests/store/test_lock_contract.py"
SCHEDULE = "tests/store/test_schedule_contract.py"
DYNAMIC, RECORDS = "tests/beat/test_schedule.py", "tests/beat/test_records.py"
STEPS, CHANGES = "tests/beat/test_clock_steps.py", "tests/beat/test_timetables.py"
TIMETABLES = "celery_singlebeat/beat/timetables.py"
LETTERS, WAITING = "tests/store/test_letter_contract.py", "tests/store/test_waiting_contract.py"
RELEASES = "tests/beat/test_releases.py"
REDLOCK, POSTGRES = "celery_singlebeat/store/redlock.py", "celery_singlebeat/store/postgres_locks.py"
VOTES, SESSIONS = "tests/store/test_redlock.py", "tests/store/test_postgres_locks.py"
ROWS, OTHERS = "tests/django/test_clerk.py", "tests/beat/test_other_schedulers.py"
MACHINE = "tests/store/test_lock_machine.py::test_three_clients_of"

MUTANTS = (
    Mutant(
        "mark",
        "a slot goes out twice",
        f"{LUA}/slots_emit.lua",
        without_guard("mark"),
        (f"{SLOTS}::test_a_slot_is_sent_once_whoever_asks_again",),
    ),
    Mutant(
        "token",
        "a message with an older epoch follows one with a newer",
        f"{LUA}/slots_emit.lua",
        without_guard("token"),
        (f"{SLOTS}::test_a_deposed_leader_writes_nothing",),
    ),
    Mutant(
        "time",
        "a slot goes out before it is due",
        f"{LUA}/slots_emit.lua",
        without_guard("time"),
        (f"{SLOTS}::test_a_slot_that_the_store_calls_future_is_early_and_sent_later",),
    ),
    Mutant(
        "base",
        "a slot is built on a mark that the store has lost",
        f"{LUA}/slots_emit.lua",
        without_guard("base"),
        (f"{SLOTS}::test_a_claim_that_builds_on_a_lost_mark_does_nothing",),
    ),
    Mutant(
        "changed",
        "a slot goes out of an entry after somebody paused it",
        f"{LUA}/slots_emit.lua",
        without_guard("changed"),
        (f"{SCHEDULE}::test_no_slot_goes_out_of_an_entry_that_has_changed_since_its_leader_looked",),
    ),
    Mutant(
        "overlap",
        "a run begins while the one before goes on",
        f"{LUA}/slots_emit.lua",
        without_guard("overlap"),
        (f"{SCHEDULE}::test_a_slot_that_would_overlap_is_skipped_until_the_run_before_has_ended",),
    ),
    Mutant(
        "missed once",
        "a slot that was missed is counted with each later one again",
        DISPATCHER,
        replaced("                missed = 0\n", ""),
        (f"{VERDICTS}::test_as_many_slots_are_caught_up_as_the_limit_says",),
    ),
    Mutant(
        "skips told",
        "skipped slots stay untold when the answer of the store was lost",
        DISPATCHER,
        replaced("            self._tell_skipped(parcel, mark, grant.epoch)\n", ""),
        (f"{VERDICTS}::test_what_happened_to_slots_is_told_although_the_answer_of_the_store_was_lost",),
    ),
    Mutant(
        "superseded",
        "a slot is dispatched that a newer one supersedes",
        VERDICT,
        replaced("if slot == due[-1] else", "if slot else"),
        (f"{JUDGED}::test_slots_missed_during_an_outage",),
    ),
    Mutant(
        "limit",
        "more slots are caught up than the limit says",
        VERDICT,
        replaced("late[-rules.most_caught_up :]", "late"),
        (f"{JUDGED}::test_all_catches_up_the_newest_up_to_its_limit",),
    ),
    Mutant(
        "grace",
        "a slot runs that is later than its grace",
        VERDICT,
        replaced("rules.grace is not None and", "False and"),
        (f"{JUDGED}::test_a_slot_later_than_its_grace_never_runs",),
    ),
    Mutant(
        "deadline",
        "a crontab runs later than Celery's deadline",
        VERDICT,
        replaced("rules.deadline is not None and", "False and"),
        (f"{JUDGED}::test_a_slot_later_than_celerys_deadline_never_runs",),
    ),
    Mutant(
        "one follow-up",
        "each slot that came while a run went on follows it",
        "celery_singlebeat/policy/entries.py",
        replaced("misfire=Misfire.LATEST, failover=0.0", "misfire=Misfire.ALL"),
        ("tests/policy/test_entries.py::test_an_entry_that_queues_keeps_its_newest_slot_only",),
    ),
    Mutant(
        "jitter bound",
        "a message goes out after the next slot",
        "celery_singlebeat/policy/jitter.py",
        replaced("if following is not None:", "if False:"),
        ("tests/policy/test_jitter.py::test_a_delay_is_stable_and_ends_before_the_next_slot",),
    ),
    Mutant(
        "changed rule",
        "what the old rule of an entry left undone is caught up under the new one",
        LINES,
        replaced(" or enrolment.rule != line.rule", ""),
        (f"{SIMULATED}::test_a_changed_crontab_is_due_under_its_new_rule_only",),
    ),
    Mutant(
        "changed arguments",
        "another policy or other arguments start an entry anew",
        LINES,
        replaced('    rule = f"{table.rule()}', '    rule = f"{table.rule()} {entry.args} {rules.missed}'),
        (f"{SIMULATED}::test_changed_arguments_leave_an_interval_where_it_is",),
    ),
    Mutant(
        "tombstone",
        "a release that is rolled back does not find where its entries stood",
        "celery_singlebeat/policy/tombstones.py",
        replaced(" and now - max(gone[name], marks.get(name, gone[name])) > KEPT", ""),
        ("tests/policy/test_tombstones.py",),
    ),
    Mutant(
        "tombstone of one that was back",
        "an entry that left a day ago begins anew, since it had left before",
        "celery_singlebeat/policy/tombstones.py",
        replaced("max(gone[name], marks.get(name, gone[name]))", "gone[name]"),
        ("tests/policy/test_tombstones.py", f"{RELEASES}::test_an_entry_that_was_back_for_a_while_is_kept"),
    ),
    Mutant(
        "damaged state",
        "one mark of the year 9999 keeps its entry from running",
        LINES,
        replaced("any(at is not None and at > tomorrow for at in moments)", "False"),
        ("tests/beat/test_dispatcher.py::test_damaged_state_of_one_entry_repeats_nothing_and_stops_nobody",),
    ),
    Mutant(
        "evicted marks",
        "what was dispatched is dispatched again when Redis has evicted the marks",
        f"{LUA}/state_mend.lua",
        replaced("places[1] ~= '' and places[1] or 'gone'", "places[1]"),
        (f"{SLOTS}::test_marks_that_were_evicted_begin_now_and_marks_that_were_never_written_do_not",),
    ),
    Mutant(
        "last mark",
        "what was tidied to the last mark counts as lost, and a slot that is due at a failover is too",
        f"{LUA}/slots_tidy.lua",
        replaced("      and not is_last_mark(entry) then", "      then"),
        (f"{SLOTS}::test_the_last_mark_stays_since_no_marks_at_all_are_marks_that_were_lost",),
    ),
    Mutant(
        "damaged mark",
        "the only mark is damaged, and counts as lost after it was cleared",
        f"{LUA}/slots_enroll.lua",
        replaced(
            "redis.call('HSET', KEYS[3], entry, first ~= '' and first or string.match(value, '^%d+'))",
            "redis.call('HDEL', KEYS[3], entry)",
        ),
        (f"{SLOTS}::test_a_damaged_mark_begins_at_the_anchor_and_not_with_the_next_leader",),
    ),
    Mutant(
        "paused",
        "slots of a paused entry go out",
        "celery_singlebeat/beat/dispatcher.py",
        replaced("if pause is not None and pause.covers(slot)}", "if False}"),
        (f"{DYNAMIC}::test_a_paused_entry_stays_paused_through_restart_and_its_slots_are_skipped",),
    ),
    Mutant(
        "resumed",
        "slots of a pause that is over go out",
        "celery_singlebeat/policy/pauses.py",
        replaced("self.until is None or self.since <= slot < self.until", "self.until is None"),
        (f"{DYNAMIC}::test_a_paused_entry_stays_paused_through_restart_and_its_slots_are_skipped",),
    ),
    Mutant(
        "backfilled again",
        "a slot that is backfilled twice is two calls",
        "celery_singlebeat/beat/calls.py",
        replaced("str(fixed or task_id(prefix, line.name, slot, trigger))", "str(fixed or uuid.uuid4())"),
        (f"{DYNAMIC}::test_a_backfill_dispatches_the_slots_in_between_and_has_the_same_ids_again",),
    ),
    Mutant(
        "hidden",
        "a dynamic entry runs instead of one of the configuration",
        "celery_singlebeat/beat/dynamic.py",
        replaced("            if name in hidden:", "            if False:"),
        (f"{DYNAMIC}::test_a_static_entry_that_comes_later_hides_a_dynamic_one_that_runs",),
    ),
    Mutant(
        "removed",
        "an entry that was removed runs on",
        "celery_singlebeat/beat/dynamic.py",
        replaced("            update.gone.append(name)\n", ""),
        (f"{DYNAMIC}::test_an_entry_runs_from_when_it_was_added_and_ends_when_it_is_removed",),
    ),
    Mutant(
        "held",
        "what was read and is not built yet runs as it was before",
        "celery_singlebeat/beat/dispatcher.py",
        replaced("if line.since is not None and self._changes.holds(line.name):", "if False:"),
        (f"{DYNAMIC}::test_what_was_read_and_is_not_built_yet_sends_nothing_of_its_former_self",),
    ),
    Mutant(
        "trimmed",
        "a change that the stream has forgotten is not seen by the claim",
        f"{LUA}/slots_emit.lua",
        without_guard("trimmed"),
        (f"{SCHEDULE}::test_a_change_that_the_stream_has_forgotten_keeps_its_slot_back_as_well",),
    ),
    Mutant(
        "kept rule",
        "an entry that is changed or imported again starts anew",
        f"{LUA}/schedule_put.lua",
        replaced("since = math.max(tonumber(old_since), asked or 0)", "since = asked or now"),
        (f"{SCHEDULE}::test_only_another_rule_starts_an_entry_anew",),
    ),
    Mutant(
        "paused and removed",
        "the pause of an entry that somebody else removed waits for the next of its name",
        f"{LUA}/schedule_pause.lua",
        without_guard("gone"),
        (f"{SCHEDULE}::test_an_entry_that_somebody_has_removed_is_not_paused",),
    ),
    Mutant(
        "damaged entry",
        "one stored entry that cannot be read stops the beat",
        "celery_singlebeat/beat/records.py",
        replaced("    except Exception as error:  # somebody", "    except KeyError as error:  # somebody"),
        (f"{RECORDS}::test_a_damaged_record_concerns_its_entry_alone_and_says_so_in_one_line",),
    ),
    Mutant(
        "no call",
        "one entry whose headers are a list stops the beat",
        "celery_singlebeat/beat/mixin.py",
        replaced("        check_call(name, entry.task, entry.options or {})\n", ""),
        (f"{DYNAMIC}::test_an_entry_of_the_configuration_of_which_no_call_can_be_made_is_parked_alone",),
    ),
    Mutant(
        "endless rule",
        "a recurrence rule that names no day is searched for ever",
        "celery_singlebeat/schedules.py",
        replaced("        self._check()\n", ""),
        ("tests/test_schedules.py::test_a_rule_that_would_be_searched_in_vain_is_refused_at_once",),
    ),
    Mutant(
        "lease owner",
        "a lease that is another's is freed",
        f"{LUA}/lease_release.lua",
        without_guard("owner"),
        (f"{LEASES}::test_an_old_grant_of_the_same_node_can_neither_renew_nor_release",),
    ),
    Mutant(
        "lease renewal owner",
        "a lease that is another's is extended",
        f"{LUA}/lease_renew.lua",
        without_guard("owner"),
        (f"{LEASES}::test_an_invented_grant_can_do_nothing",),
    ),
    Mutant(
        "presence confirmed",
        "one lost connection costs a leader its lease",
        f"{LUA}/lease_bid.lua",
        replaced("if held == ARGV[3] then", "if true then"),
        (f"{LEASES}::test_one_look_is_not_enough_to_replace_a_leader",),
    ),
    Mutant(
        "wedged loop",
        "a leader whose loop hangs keeps the lease for ever",
        "celery_singlebeat/beat/elector.py",
        replaced("if not turning:", "if False:"),
        ("tests/beat/test_elector.py::test_a_wedged_tick_loop_loses_the_lease",),
    ),
    Mutant(
        "lock owner",
        "a lock that is not ours goes",
        f"{LUA}/lock_release.lua",
        without_guard("owner"),
        (
            f"{LOCKS}::test_a_holder_whose_lock_was_taken_over_neither_deletes_nor_extends_the_new_one",
            f"{MACHINE}_a_redis",
        ),
    ),
    Mutant(
        "lock renewal owner",
        "a lock that is not ours is extended",
        f"{LUA}/lock_renew.lua",
        without_guard("owner"),
        (f"{LOCKS}::test_only_the_exact_token_renews", f"{MACHINE}_a_redis"),
    ),
    Mutant(
        "lock holder",
        "a held lock is granted to another",
        f"{LUA}/lock_acquire.lua",
        without_guard("holder"),
        (f"{MACHINE}_a_redis",),
    ),
    Mutant(
        "lock orphan owner",
        "the death of one process frees the lock of another",
        f"{LUA}/lock_orphan.lua",
        without_guard("owner"),
        (f"{LOCKS}::test_the_lock_of_a_dead_process_is_freed_for_its_call_alone",),
    ),
    Mutant(
        "lock retry",
        "a grant whose reply was lost holds off its own caller",
        f"{LUA}/lock_acquire.lua",
        replaced("lock[1] == own, lock[3]", "false, lock[3]"),
        (f"{LOCKS}::test_asking_again_with_the_own_token_returns_the_same_grant", f"{MACHINE}_a_redis"),
    ),
    Mutant(
        "interrupted script",
        "the answer of a script that was interrupted goes to the next one",
        "celery_singlebeat/store/scripts.py",
        replaced("connection.disconnect()", "pass"),
        ("tests/store/test_scripts.py",),
    ),
    Mutant(
        "interrupted execution",
        "the lock of an execution that was interrupted beside its body is renewed for ever",
        "celery_singlebeat/task/execution.py",
        replaced("heartbeat().forget(execution.lock)", "pass"),
        ("tests/task/test_interruptions.py",),
    ),
    Mutant(
        "lock trust",
        "a slow answer to an acquisition lengthens the trust in a lock",
        "celery_singlebeat/task/holding.py",
        replaced("later(asked_at, ttl - margin(ttl))", "later(clock.monotonic(), ttl - margin(ttl))"),
        (f"{MACHINE}_a_store_in_memory", f"{MACHINE}_a_redis"),
    ),
    Mutant(
        "lock renewal trust",
        "a slow answer to a renewal lengthens the trust in a lock",
        "celery_singlebeat/task/holding.py",
        replaced(
            "later(asked_at, self.ttl - margin(self.ttl))",
            "later(self._clock.monotonic(), self.ttl - margin(self.ttl))",
        ),
        (f"{MACHINE}_a_store_in_memory", f"{MACHINE}_a_redis"),
    ),
    Mutant(
        "lock turn",
        "a call slips in before the one that comes next",
        f"{LUA}/lock_pass.lua",
        replaced("if not next then", "if true then"),
        (f"{LOCKS}::test_however_the_holder_ends_the_key_is_kept_for_the_one_that_comes_next",),
    ),
    Mutant(
        "trust window",
        "a slow answer lengthens a term",
        "celery_singlebeat/policy/leases.py",
        replaced("later(asked_at, ttl - margin(ttl))", "later(asked_at, ttl)"),
        ("tests/policy/test_leases.py::test_trust_ends_before_the_lease_can",),
    ),
    Mutant(
        "two clocks",
        "a clock that is ahead sends early",
        "celery_singlebeat/policy/clocks.py",
        replaced("return own if offset is None else min(own,", "return own if offset is None else max(own,"),
        ("tests/policy/test_clocks.py::test_both_clocks_must_say_that_a_slot_is_due",),
    ),
    Mutant(
        "own clock",
        "a slot goes out before the leader's own clock has reached it",
        "celery_singlebeat/policy/clocks.py",
        replaced("min(own, offset.earliest(moment))", "offset.earliest(moment)"),
        (f"{STEPS}::test_a_clock_that_is_set_and_set_right_sends_nothing_early_or_twice",),
    ),
    Mutant(
        "proven time",
        "the store's clock is taken to stand where it may not stand yet",
        "celery_singlebeat/policy/clocks.py",
        replaced("Offset(answered_at, store_time, ", "Offset(asked_at, store_time, "),
        ("tests/policy/test_clocks.py::test_an_answer_proves_an_interval",),
    ),
    Mutant(
        "step of the store",
        "a step of the store's clock is not believed",
        "celery_singlebeat/policy/clocks.py",
        replaced("if low <= high else new", "if low <= high else known"),
        ("tests/policy/test_clocks.py::test_a_step_of_the_stores_clock_is_believed_at_once",),
    ),
    Mutant(
        "early in one turn",
        "a leader asks without end when the store's clock is set back in its turn",
        "celery_singlebeat/beat/dispatcher.py",
        replaced("max(now, parcel.turn) + ", "now + "),
        (f"{STEPS}::test_a_store_whose_clock_was_set_back_is_not_asked_without_end",),
    ),
    Mutant(
        "clock of a schedule",
        "a schedule that decides itself does so by the clock of its machine alone",
        TIMETABLES,
        replaced("with _held(self._asked, now, own):", "if True:"),
        (f"{STEPS}::test_a_schedule_that_decides_itself_does_so_by_both_clocks",),
    ),
    Mutant(
        "time that comes twice",
        "a daily job runs at the second of two times",
        "celery_singlebeat/zones.py",
        replaced("for offset in (old, new):", "for offset in (new, old):"),
        (f"{CHANGES}::test_both_changes_of_the_clock",),
    ),
    Mutant(
        "time that is skipped",
        "a daily job runs half an hour after the change that skipped it",
        "celery_singlebeat/zones.py",
        replaced(
            "return change_between(guess - max(old, new), guess - min(old, new), zone)", "return guess - old"
        ),
        (f"{CHANGES}::test_both_changes_of_the_clock",),
    ),
    Mutant(
        "real hours",
        "a job of each hour leaves one out",
        TIMETABLES,
        replaced("if self._calendar.names_hours else self._real(moment)", ""),
        (f"{CHANGES}::test_both_changes_of_the_clock",),
    ),
    Mutant(
        "zone of an entry",
        "an entry runs by the app's zone and not by its own",
        TIMETABLES,
        replaced("found = zone or (moment and moment.tzinfo) or apps", "found = apps"),
        (f"{CHANGES}::test_the_entrys_zone_wins_over_the_apps",),
    ),
    Mutant(
        "anchor",
        "restarts starve an interval that is longer than they are apart",
        "celery_singlebeat/beat/lines.py",
        replaced("line.stand_at(enrolment.anchor, mark)", "line.stand_at(self._now(), mark)"),
        ("tests/beat/test_dispatcher.py::test_restarting_more_often_than_the_interval_starves_nothing",),
    ),
    Mutant(
        "letter",
        "a letter that somebody else took is sent again",
        f"{LUA}/letter_move.lua",
        without_guard("letter"),
        (f"{LETTERS}::test_a_letter_that_two_operators_chose_is_sent_once",),
    ),
    Mutant(
        "second letter",
        "a call is buried twice",
        f"{LUA}/letter_bury.lua",
        without_guard("letter"),
        (f"{LETTERS}::test_a_call_has_one_letter_for_each_count_of_replays",),
    ),
    Mutant(
        "due",
        "a call that waits is sent before it is due",
        f"{LUA}/waiting_move.lua",
        replaced("'-inf', string.format('%.0f', now)", "'-inf', '+inf'"),
        (f"{WAITING}::test_a_record_waits_until_it_is_due",),
    ),
    Mutant(
        "rank",
        "workers move although a beat does",
        f"{LUA}/waiting_move.lua",
        without_guard("rank"),
        (f"{WAITING}::test_a_worker_rests_while_a_beat_moves",),
    ),
    Mutant(
        "redlock owner",
        "a server gives its vote twice",
        f"{LUA}/redlock_acquire.lua",
        without_guard("owner"),
        (f"{VOTES}::test_two_votes_of_five_are_no_lock_and_are_given_back",),
    ),
    Mutant(
        "redlock release owner",
        "a vote that is another's is given back",
        f"{LUA}/redlock_release.lua",
        without_guard("owner"),
        (f"{VOTES}::test_only_the_exact_token_renews_and_releases",),
    ),
    Mutant(
        "redlock renewal owner",
        "a vote that is another's is extended",
        f"{LUA}/redlock_renew.lua",
        without_guard("owner"),
        (f"{VOTES}::test_only_the_exact_token_renews_and_releases",),
    ),
    Mutant(
        "redlock quorum",
        "two of five servers are enough",
        REDLOCK,
        replaced("len(connect) // 2 + 1", "len(connect) // 2"),
        (f"{VOTES}::test_two_votes_of_five_are_no_lock_and_are_given_back",),
    ),
    Mutant(
        "redlock validity",
        "a lock that took its ttl to be granted counts",
        REDLOCK,
        replaced("later(asked_at, ttl - margin(ttl))", "later(self._clock.monotonic(), ttl)"),
        (f"{VOTES}::test_a_lock_counts_from_before_the_first_request_less_the_drift",),
    ),
    Mutant(
        "redlock drift",
        "a lock counts until the slowest clock says that it ends",
        REDLOCK,
        replaced("later(asked_at, ttl - margin(ttl))", "later(asked_at, ttl)"),
        (f"{VOTES}::test_a_lock_counts_from_before_the_first_request_less_the_drift",),
    ),
    Mutant(
        "redlock give back",
        "what a minority granted keeps others off",
        REDLOCK,
        replaced("        self._tell_all(self._without_vote(key, token))\n        if", "        if"),
        (f"{VOTES}::test_two_votes_of_five_are_no_lock_and_are_given_back",),
    ),
    Mutant(
        "redlock fence",
        "a fence is used that no majority has noted",
        REDLOCK,
        replaced("notes_fences = True", "notes_fences = False"),
        (f"{VOTES}::test_a_grant_whose_fence_no_majority_notes_does_not_count",),
    ),
    Mutant(
        "postgresql renewal owner",
        "a session is told that it holds what another one holds",
        POSTGRES,
        replaced(" and l.pid = pg_backend_pid()", ""),
        (f"{SESSIONS}::test_a_connection_that_lives_and_holds_the_key_no_more_is_no_holder",),
        find_postgres,
    ),
    Mutant(
        "postgresql ttl",
        "a holder that is cut off keeps its key for ever",
        POSTGRES,
        replaced("self._number(key), _millis(ttl), _KEEP", "self._number(key), _KEEP_MILLIS, _KEEP"),
        (f"{SESSIONS}::test_a_holder_that_is_cut_off_keeps_its_key_for_its_ttl",),
        find_postgres,
    ),
    Mutant(
        "postgresql retry",
        "a lock whose answer was lost holds off its own caller",
        POSTGRES,
        replaced("        self._end_doubtful(token, deadline)\n", ""),
        (f"{SESSIONS}::test_the_lost_answer_to_an_acquisition_is_asked_for_again",),
        find_postgres,
    ),
    Mutant(
        "postgresql pooler",
        "a lock belongs to whoever gets the connection next",
        "celery_singlebeat/store/postgres_session.py",
        replaced("if str(pid) != str(pg.backend_pid):", "if False:"),
        (f"{SESSIONS}::test_a_pooler_is_refused",),
        find_postgres,
    ),
    Mutant(
        "postgresql fork",
        "a child believes that it holds what its parent holds",
        POSTGRES,
        replaced('if hasattr(os, "register_at_fork"):', "if False:"),
        (f"{SESSIONS}::test_a_child_leaves_the_connections_of_its_parent_alone",),
        find_postgres,
    ),
    Mutant(
        "django history",
        "a late writer turns the count of a row back",
        "celery_singlebeat/django/table.py",
        replaced("When(pk=pk, total_run_count__lt=count, then=", "When(pk=pk, then="),
        (f"{ROWS}::test_a_late_writer_turns_no_history_back",),
    ),
    Mutant(
        "once",
        "what runs once runs again under the next leader",
        "celery_singlebeat/beat/windows.py",
        replaced("if self._once and moment > anchor:", "if False:"),
        ("tests/beat/test_windows.py::test_what_happens_once_has_one_slot",),
    ),
    Mutant(
        "django standby",
        "every replica writes into the database",
        "celery_singlebeat/django/clerk.py",
        replaced("if epoch is None or self._is_blind:", "if self._is_blind:"),
        ("tests/django/test_rows.py::test_a_standby_has_the_rows_and_writes_nothing",),
    ),
    Mutant(
        "django ghost",
        "a row goes out that was deleted before anybody knew where it stood",
        "celery_singlebeat/beat/machine.py",
        replaced(" if self.agenda.line(line.name) is line", ""),
        ("tests/django/test_rows.py::test_a_row_that_comes_and_goes_between_two_turns_leaves_nothing",),
    ),
    Mutant(
        "unread schedule",
        "a schedule that cannot be read is taken for an empty one",
        "celery_singlebeat/beat/mixin.py",
        replaced(
            "type(error).__name__, error\n            )\n            return None\n        return schedule",
            "type(error).__name__, error\n            )\n            return {}\n        return schedule",
        ),
        (f"{OTHERS}::test_a_schedule_that_changes_by_itself_is_looked_at",),
    ),
    Mutant(
        "mixin order",
        "a mixin behind its scheduler lets every replica dispatch",
        "celery_singlebeat/beat/mixin.py",
        replaced("if not schedulers or cls.__mro__.index", "if not schedulers or 0 > cls.__mro__.index"),
        (f"{OTHERS}::test_a_scheduler_in_front_of_the_mixin_is_refused",),
    ),
)


def verdict(mutant: Mutant) -> str:
    """What became of a mutant: "killed", or why not. Raises `ServerNotFoundError`."""
    mutant.server()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        leave_out = shutil.ignore_patterns(".git", ".venv", "*cache*", "*.egg-info", "build", "dist")
        shutil.copytree(ROOT, copy, ignore=leave_out)
        victim = copy / mutant.file
        before = victim.read_text("utf-8")
        after = mutant.change(before)
        if after == before:
            return f"not made: {mutant.file} has no such guard"
        victim.write_text(after, "utf-8")
        for killer in mutant.killers:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", killer],
                cwd=copy,
                check=False,
                capture_output=True,
                text=True,
            )
            if done.returncode == 0:
                return f"lives: {killer} passes"
            if done.returncode != 1:
                return f"not judged: pytest ended with {done.returncode}\n{done.stdout[-2000:]}"
    return "killed"


def main() -> int:
    wanted = set(sys.argv[1:]) or {mutant.name for mutant in MUTANTS}
    alive = 0
    for mutant in MUTANTS:
        if mutant.name in wanted:
            try:
                found = verdict(mutant)
            except ServerNotFoundError as error:
                found = f"not judged: {error}"
            alive += found != "killed"
            print(f"{mutant.name:24s} {found:8s} without it, {mutant.harm}")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
