"""Guards of the library, and what it looks like without each: strings of the source, and what stands in their place."""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.kinds import Kind


@dataclass(frozen=True, slots=True)
class Mutant:
    """The library without one of its guards."""

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    """What is replaced, each of which stands in the file exactly once, by what."""
    kind: Kind | None = None
    """In which kind of round it is to be found; None: in any."""
    tests: tuple[str, ...] = ()
    """Tests that find it by interleavings laid out by hand, if it is rarely met by chance."""


_STAYS = "        moves.enter_available(turn.packed, stored_pointer(rest), NO_NOTES)\n"

MUTANTS = (
    Mutant(
        "the back-off of an expired lease begins when somebody looks",
        "fdbqueue/stored/policies.py",
        ((" - max(0, now_us - since_us))", ")"),),
        tests=("tests/layers/leases/test_leases_given_back.py::test_a_back_off_begins_at_the_end_of_a_lease",),
    ),
    Mutant(
        "a slot whose id begins with the byte 255 is not mended",
        "layers/sessions/line/mending.py",
        (
            ("tr.clear_range(*bytes_behind(", "tr.clear_range(*within("),
            ("rows(tr, *bytes_behind(begin))", "rows(tr, *within(begin))"),
        ),
        tests=(
            "tests/layers/sessions/test_sessions_mending.py::test_a_damaged_slot_whose_id_begins_with_ff_is_mended",
        ),
    ),
    Mutant(
        "an owner that reads ahead keeps what fired timers took away",
        "layers/subscriptions/head.py",
        (("        self._early = None  # timers were", "        # timers were"),),
        kind=Kind.exclusive,
        tests=(
            (
                "tests/layers/subscriptions/test_subscriptions_exclusive_all.py"
                "::test_an_item_that_expires_while_credit_is_short_is_counted_once"
            ),
        ),
    ),
    Mutant(
        "waits for the database count as time of the handlers",
        "layers/consumer/holds.py",
        (
            (
                "        busy = self._busy + (now - self._busy_since if self._active else 0.0)",
                "        busy = now - self._busy_since",
            ),
        ),
        tests=(
            "tests/layers/consumer/test_consumer_pace.py::test_a_wait_for_the_database_says_nothing_of_the_handlers",
        ),
    ),
    Mutant(
        "a distant cluster has no more leased ahead than a near one",
        "layers/consumer/holds.py",
        (("max(AHEAD_SECONDS, min(4 * self._call_seconds, WAIT_SECONDS))", "AHEAD_SECONDS"),),
        tests=(
            "tests/layers/consumer/test_consumer_pace.py::test_more_is_leased_ahead_where_transactions_take_longer",
        ),
    ),
    Mutant(
        "a lease does not conflict with who takes the same items",
        "layers/leases/taking.py",
        (
            (
                '        tr.add_read_conflict_range(self._layout.begin, taken[-1].key + b"\\x00")\n        tr.clear',
                "        tr.clear",
            ),
        ),
        tests=(
            "tests/layers/leases/test_leases_interleavings.py::test_of_two_leases_of_the_same_item_one_conflicts",
            "tests/layers/leases/test_leases_interleavings.py::test_a_lease_conflicts_with_a_slow_producer_in_front_of_it",
        ),
    ),
    Mutant(
        "Ctrl-C in the first moments of a command prints a traceback",
        "fdbqueue/__init__.py",
        (("import fdbqueue.base.starting  #", "#"),),
        tests=("tests/cli/test_stopping.py::test_a_signal_while_python_imports_the_command_prints_no_traceback",),
    ),
    Mutant(
        "Ctrl-C just before a command reads standard input waits for the next input",
        "fdbqueue/cli/input.py",
        (("    while not _comes_soon(file):\n        pass\n", ""),),
        tests=("tests/cli/test_input.py::test_no_read_of_standard_input_blocks",),
    ),
    Mutant(
        "the first look at the web page reads all queues twice",
        "fdbqueue/web/sampling.py",
        (("                was_idle = False  #", "                #"),),
        tests=("tests/web/test_sampling.py::test_the_first_look_reads_once",),
    ),
    Mutant(
        "an error in the shell names an object of Python",
        "fdbqueue/cli/helptext.py",
        (("    text = _OBJECT.sub(lambda found: found[1], text)\n", ""),),
        tests=("tests/cli/test_remedies.py::test_an_error_about_a_closing_session_names_no_argument_of_python",),
    ),
    Mutant(
        "an empty error of bury erases the last one",
        "layers/leases/browsing.py",
        (("notes[packed], error or None)", "notes[packed], error)"),),
        tests=("tests/cli/test_leasing.py::test_a_buried_item_keeps_its_last_error_unless_another_is_given",),
    ),
    Mutant(
        "a worker of one process is not started again",
        "fdbqueue/cli/worker.py",
        (("    if child is None:\n        options =", "    if processes > 1 and child is None:\n        options ="),),
        tests=("tests/cli/test_worker.py::test_processes_are_started_again_when_they_die_and_end_together",),
    ),
    Mutant(
        "a worker that can't begin is started for ever",
        "fdbqueue/cli/worker.py",
        (("child.first and code in REFUSALS", "False and code in REFUSALS"),),
        tests=("tests/cli/test_worker.py::test_a_database_that_can_not_be_opened_is_told_and_no_process_starts_again",),
    ),
    Mutant(
        "a lease's token is not looked at",
        "layers/leases/holding.py",
        (
            ("            if notes.token == lease.token:\n", "            if notes.token:\n"),
            ("None if notes is None or notes.token != lease.token else", "None if notes is None else"),
        ),
        tests=("tests/layers/leases/test_leases.py::test_a_stale_token_can_do_nothing",),
    ),
    Mutant(
        "acks read the leased item by snapshot",
        "layers/leases/holding.py",
        (
            ("value_of(tr.get(self._layout.leased", "value_of(tr.snapshot.get(self._layout.leased"),
            ("reader = tr if keeps else tr.snapshot", "reader = tr.snapshot"),
            ("                tr.add_read_conflict_key(leased.key(packed))\n", "                pass\n"),
        ),
        tests=(
            "tests/layers/leases/test_leases_interleavings.py::test_two_calls_that_end_or_extend_one_lease_conflict",
        ),
    ),
    Mutant(
        "an ack without a read does not conflict with who takes the lease away",
        "layers/leases/holding.py",
        (("            tr.add_read_conflict_key(self._layout.leased.key(one.packed))\n", ""),),
        tests=(
            "tests/layers/staged/test_staged_grants.py::test_an_ack_without_a_read_fails_for_a_lease_that_was_changed",
        ),
    ),
    Mutant(
        "the high-water mark is not raised",
        "fdbqueue/moves/moves.py",
        (('    tr.byte_max(layout.high_water_mark_key, index.to_bytes(8, "big"))\n', "    return\n"),),
        tests=("tests/layers/leases/test_leases.py::test_an_enqueue_while_all_items_are_leased_comes_after_them",),
    ),
    Mutant(
        "the index is that of the last item, not one more",
        "fdbqueue/verbs/queue.py",
        (
            (
                "        index = 1 + await Admission(tr, self.layout, self.order_name).steps()\n",
                "        index = await Admission(tr, self.layout, self.order_name).steps() or 1\n",
            ),
        ),
        tests=("tests/queue/test_queue.py::test_items_are_dequeued_in_the_order_of_their_enqueue",),
    ),
    Mutant(
        "the marker is not read after an unknown outcome",
        "fdbqueue/engine/transactional.py",
        (("if value.present() and bytes(value) == doubt[0]:", "if value is None:"),),
        tests=("tests/queue/test_once.py::test_a_consumed_item_with_an_unknown_outcome_is_not_enqueued_again",),
    ),
    Mutant(
        "a transactional body writes no marker",
        "fdbqueue/engine/transactional.py",
        (("        claim.is_asked = True\n", "        claim.is_asked = False\n"),),
        tests=(
            "tests/layers/together/test_once_in_transactions.py::test_a_handler_that_acks_in_its_own_transaction_has_done_its_item",
        ),
    ),
    Mutant(
        "moves of items ask for no marker",
        "fdbqueue/moves/moves.py",
        (("            asks_marker(self._tr)\n", "            pass\n"),),
        tests=(
            "tests/layers/together/test_once_in_transactions.py::test_a_body_with_a_call_that_writes_takes_effect_once",
        ),
    ),
    Mutant(
        "a layer's transaction asks for no marker",
        "fdbqueue/verbs/queue.py",
        (("            asks_marker(given)\n", "            pass\n"),),
        tests=(
            "tests/layers/together/test_once_in_transactions.py::test_a_body_with_a_call_that_writes_takes_effect_once",
        ),
    ),
    Mutant(
        "an append asks for no marker",
        "fdbqueue/writes/appending.py",
        (("    asks_marker(tr)\n    if amount == 1:", "    if amount == 1:"),),
        tests=(
            "tests/layers/together/test_once_in_transactions.py::test_a_body_with_a_call_that_writes_takes_effect_once",
        ),
    ),
    Mutant(
        "a dequeue asks for no marker",
        "fdbqueue/moves/taking.py",
        (("        asks_marker(tr)\n        tr.add(", "        tr.add("),),
        tests=(
            "tests/layers/together/test_once_in_transactions.py::test_a_body_with_a_call_that_writes_takes_effect_once",
        ),
    ),
    Mutant(
        "a clear asks for no marker",
        "fdbqueue/writes/appending.py",
        (("    asks_marker(tr)\n    tr.clear_range(", "    tr.clear_range("),),
        tests=(
            "tests/layers/together/test_once_in_transactions.py::test_a_body_with_a_call_that_writes_takes_effect_once",
        ),
    ),
    Mutant(
        "two transactions that adopt a policy do not conflict",
        "fdbqueue/stored/catalogue.py",
        (
            (
                "    stored = await value_of(tr.get(layout.catalogue_key))\n    if not stored",
                "    stored = await value_of(tr.snapshot.get(layout.catalogue_key))\n    if not stored",
            ),
        ),
        tests=("tests/queue/test_policies.py::test_of_two_transactions_that_adopt_a_policy_one_runs_again",),
    ),
    Mutant(
        "leases rely on a look that knew nothing of their policy",
        "fdbqueue/stored/known.py",
        (("            self.doubt()  # an earlier", "            # an earlier"),),
        tests=("tests/queue/test_policies.py::test_leases_of_a_queue_that_was_just_used_follow_what_is_stored",),
    ),
    Mutant(
        "a process that only gives back does not look at the policy",
        "layers/leases/transitions.py",
        (
            (
                "        if not (known.is_part or known.relies(tr)):\n            await look(tr, self.layout)\n",
                "",
            ),
        ),
        tests=("tests/queue/test_policies.py::test_a_process_that_only_gives_back_follows_the_stored_policy",),
    ),
    Mutant(
        "a pause asks for no marker",
        "fdbqueue/verbs/administered.py",
        (("    asks_marker(tr)\n", ""),),
        tests=(
            "tests/layers/together/test_once_in_transactions.py::test_a_body_with_a_call_that_writes_takes_effect_once",
        ),
    ),
    Mutant(
        "a counter that can't be read is read as another number",
        "fdbqueue/stored/counters.py",
        (("_COUNT.unpack(stored)[0]", "_COUNT.unpack(stored[:8].ljust(8))[0]"),),
        tests=("tests/queue/test_catalogue.py::test_a_queue_with_a_damaged_counter_hides_no_other",),
    ),
    Mutant(
        "a counter asks for no marker",
        "fdbqueue/stored/counters.py",
        (("    asks_marker(tr)\n", ""),),
        tests=(
            "tests/layers/together/test_once_in_transactions.py::test_a_body_with_a_call_that_writes_takes_effect_once",
        ),
    ),
    Mutant(
        "the end of a deadline's claim asks for no marker",
        "layers/smart/_deadlines.py",
        (("        asks_marker(tr)\n        tr.clear", "        tr.clear"),),
        tests=(
            "tests/layers/together/test_once_in_transactions.py::test_a_body_with_a_call_that_writes_takes_effect_once",
        ),
    ),
    Mutant(
        "a claim of a deadline asks for no marker",
        "layers/smart/_deadlines.py",
        (("in found:\n            asks_marker(tr)\n", "in found:\n"),),
        tests=(
            "tests/layers/together/test_once_in_transactions.py::test_a_body_with_a_call_that_writes_takes_effect_once",
        ),
    ),
    Mutant(
        "a claim of a deadline that lapsed asks for no marker",
        "layers/smart/_deadlines.py",
        (("is not None:\n            asks_marker(tr)\n            (_", "is not None:\n            (_"),),
        tests=(
            "tests/layers/together/test_once_in_transactions.py::test_a_body_with_a_call_that_writes_takes_effect_once",
        ),
    ),
    Mutant(
        "a fetch of copies asks for no marker",
        "layers/smart/_resend.py",
        (("                asks_marker(tr)\n", "                pass\n"),),
        tests=(
            "tests/layers/together/test_once_in_transactions.py::test_a_body_with_a_call_that_writes_takes_effect_once",
        ),
    ),
    Mutant(
        "forgetting operations asks for no marker",
        "layers/oplog/_oplog.py",
        (("            asks_marker(tr)\n", ""),),
        tests=(
            "tests/layers/together/test_once_in_transactions.py::test_a_body_with_a_call_that_writes_takes_effect_once",
        ),
    ),
    Mutant(
        "an attempt keeps what an earlier one asked",
        "fdbqueue/engine/transactional.py",
        (("        claim.is_asked = False\n        result", "        result"),),
        tests=(
            "tests/layers/together/test_once_in_transactions.py::test_an_attempt_whose_calls_only_look_is_repeated",
        ),
    ),
    Mutant(
        "a command gives a cluster's first answer less time than it says",
        "fdbqueue/cli/opening.py",
        (("cluster.answer_s = patience", "cluster.answer_s = min(cluster.answer_s, patience)"),),
        tests=("tests/cli/test_patience.py::test_a_commands_patience_is_that_of_its_first_answer_too",),
    ),
    Mutant(
        "a page waits without end for a database that does not answer",
        "fdbqueue/web/app.py",
        (("anyio.fail_after(ANSWER_SECONDS)", "anyio.fail_after(None)"),),
        tests=("tests/web/test_outage.py::test_a_page_says_that_the_database_does_not_answer",),
    ),
    Mutant(
        "a stopped consumer raises since its database does not answer",
        "layers/consumer/running.py",
        (("if stopping.is_silent and self._report.stopped:", "if not self._report:"),),
        tests=(
            "tests/layers/consumer/test_consumer.py::test_a_database_that_does_not_answer_keeps_no_consumer_from_ending",
        ),
    ),
    Mutant(
        "a bulk load does not look whether a batch of unknown outcome is in",
        "fdbqueue/writes/bulk.py",
        (("doubt = (sent.mark, None) if leaves_in_doubt(error) else None", "doubt = None"),),
        Kind.plain,
        tests=("tests/queue/test_bulk.py::test_a_batch_is_not_split_while_its_outcome_is_unknown",),
    ),
    Mutant(
        "the timer of a lease is forgotten",
        "fdbqueue/moves/moves.py",
        (('        self._tr.set(self._layout.timer_key(notes.expires_at_us, packed, Due.LEASE), b"")\n', ""),),
        tests=("tests/layers/leases/test_leases_given_back.py::test_an_expired_lease_counts_an_attempt_and_says_why",),
    ),
    Mutant(
        "timers are settled a minute early",
        "layers/leases/timers.py",
        (("begin, end = layout.timers_until(now_us)", "begin, end = layout.timers_until(now_us + 60_000_000)"),),
        tests=("tests/layers/leases/test_leases_given_back.py::test_an_expired_lease_counts_an_attempt_and_says_why",),
    ),
    Mutant(
        "dead letters that leave are not counted",
        "fdbqueue/moves/moves.py",
        (('        self.tally("dead", -1)\n', ""),),
        tests=(
            "tests/layers/leases/test_leases_dead_letters.py::test_a_redriven_item_returns_to_its_place_with_no_attempts",
        ),
    ),
    Mutant(
        "an item dies one attempt too early",
        "fdbqueue/stored/policies.py",
        (("attempt >= self.max_attempts", "attempt + 1 >= self.max_attempts"),),
        tests=("tests/layers/leases/test_leases_given_back.py::test_after_max_attempts_an_item_is_a_dead_letter",),
    ),
    Mutant(
        "the chunks of an item that is gone stay",
        "fdbqueue/moves/moves.py",
        (("            clear_parts(self._tr, self._layout, packed, stored, self._home)\n", "            pass\n"),),
        tests=(
            "tests/layers/leases/test_leases.py::test_a_large_item_keeps_its_chunks_where_they_are_until_it_is_acked",
        ),
    ),
    Mutant(
        "a lease that was granted and not taken counts as an attempt",
        "layers/staged/requests.py",
        (("        before = uncounted(notes)\n", "        before = notes\n"),),
        tests=("tests/layers/staged/test_staged_untaken.py::test_an_untaken_item_goes_back_uncounted_to_its_place",),
    ),
    Mutant(
        "a grant is given back though its client has taken it",
        "layers/staged/requests.py",
        (("    if members_of(tr).has_mark(grant.process, client):\n        return\n", ""),),
        tests=("tests/layers/staged/test_staged_untaken.py::test_a_taken_item_stays_with_its_process",),
    ),
    Mutant(
        "an untaken item is granted to the next process that may have ended",
        "layers/staged/requests.py",
        (("    if returned and not asked:\n", "    if False:\n"),),
        tests=("tests/layers/staged/test_staged_untaken.py::test_an_untaken_item_comes_before_those_behind_it",),
    ),
    Mutant(
        "who finds an item untaken serves others before itself",
        "layers/leases/taking.py",
        (("if any(one.kind == Due.GRANT for one in fired):", "if False:"),),
        tests=("tests/layers/staged/test_staged_untaken.py::test_an_untaken_item_comes_before_those_behind_it",),
    ),
    Mutant(
        "a drain does not wait for items that a process was granted and did not take",
        "layers/consumer/_handling.py",
        (('return "perhaps" if untaken else "none"', 'return "none"'),),
        tests=(
            "tests/layers/consumer/test_consumer_drain.py::test_a_drain_comes_to_an_item_that_was_between_two_places",
        ),
    ),
    Mutant(
        "a drain leaves due timers to others",
        "layers/consumer/_handling.py",
        (("if due_us is not None and due_us <= leases.now_us():", "if False:"),),
        tests=(
            "tests/layers/consumer/test_consumer_drain.py::test_a_drain_comes_to_an_item_that_was_between_two_places",
        ),
    ),
    Mutant(
        "dead processes are not told from live ones",
        "layers/staged/requests.py",
        ((' or members_of(tr).is_dead(self.wish.process or b"")', ""),),
        tests=(
            "tests/layers/staged/test_staged_claims.py::test_a_request_in_front_of_a_process_that_has_ended_is_removed_at_once",
        ),
    ),
    Mutant(
        "who is granted leases does not look whether they are still its own",
        "layers/leases/holding.py",
        (("None if notes is None or notes.token != lease.token else", "None if notes is None else"),),
        Kind.plain,
        tests=(
            "tests/layers/staged/test_staged_grants.py::test_a_granted_lease_that_was_reclaimed_is_not_delivered",
            "tests/layers/staged/test_staged_interleavings.py::test_a_grant_whose_lease_was_lost_is_not_collected",
        ),
    ),
    Mutant(
        "who claims its items does not look at what happens to those in front",
        "layers/staged/delivery.py",
        (("            tr.add_read_conflict_range(begin, row.key)\n", ""),),
        Kind.plain,
        tests=("tests/layers/staged/test_staged_claims.py::test_an_item_inserted_ahead_of_a_claim_is_counted",),
    ),
    Mutant(
        "who claims its items does not look at what happens to the requests in front",
        "layers/staged/requests.py",
        (('            tr.add_read_conflict_key(one.key + b"\\x00")\n', "            pass\n"),),
        Kind.plain,
        tests=(
            "tests/layers/staged/test_staged_claims.py::test_a_claim_notices_a_change_ahead_right_before_its_commit",
        ),
    ),
    Mutant(
        "an item whose delay is over also stays among those delayed",
        "fdbqueue/moves/moves.py",
        (("        self._tr.clear(self._layout.delayed.key(packed))\n", ""),),
        tests=("tests/layers/leases/test_leases.py::test_an_item_changes_its_place_and_never_its_position",),
    ),
    Mutant(
        "nobody is woken",
        "layers/staged/grants.py",
        (
            (
                "watches += map(tr.watch, self._delivery.watched())",
                "watches += []",
            ),
        ),
        tests=(
            "tests/layers/staged/test_staged_interleavings.py::test_an_item_that_is_given_back_wakes_a_waiting_call",
        ),
    ),
    Mutant(
        "a smart decision does not conflict with reports that come at the same time",
        "layers/smart/scanning.py",
        (("            self._tr.add_read_conflict_range(span.begin, end)\n", ""),),
        Kind.smart,
        tests=(
            "tests/layers/smart/test_smart_interleavings.py::test_of_two_reports_of_progress_at_once_never_both_stay",
        ),
    ),
    Mutant(
        "what a subscription's consumers have is not taken off its credit",
        "layers/subscriptions/records.py",
        (("max(0, items - len(held))", "max(0, items)"),),
        Kind.subscriptions,
        tests=(
            "tests/layers/subscriptions/test_subscriptions_interleavings.py::test_of_two_leases_on_the_last_credit_one_conflicts",
        ),
    ),
    Mutant(
        "an item that has left a subscription's consumers still counts as theirs",
        "fdbqueue/moves/moves.py",
        (("            self._tr.clear(self._layout.held_key(notes.subscription, packed))\n", "            pass\n"),),
        Kind.subscriptions,
        tests=(
            "tests/layers/subscriptions/test_subscriptions_credit.py::test_credit_is_never_negative_and_returns_when_leases_end",
        ),
    ),
    Mutant(
        "subscriptions are not told of what comes back",
        "fdbqueue/moves/moves.py",
        (
            (
                "            spans = [(packed, packed) for packed in self.arrived]\n",
                "            spans: list[tuple[bytes, bytes]] = []\n",
            ),
        ),
        Kind.subscriptions,
        tests=(
            "tests/layers/subscriptions/test_subscriptions_interleavings.py::test_an_arrival_while_a_lease_commits_is_seen_by_the_next_one",
        ),
    ),
    Mutant(
        "items that leave a level are not counted",
        "fdbqueue/moves/moves.py",
        (("            count_levels(self._tr, self._layout, self._levels)\n", "            pass\n"),),
        Kind.priority,
        tests=("tests/layers/priority/test_priority.py::test_stats_count_every_level_and_agree_with_a_recount",),
    ),
    Mutant(
        "a lease by turns does not conflict with who takes the same items",
        "layers/priority/_priority.py",
        (('            tr.add_read_conflict_range(begin, run[-1].key + b"\\x00")\n', ""),),
        Kind.weights,
        tests=("tests/layers/priority/test_weighted.py::test_takes_conflict_only_if_their_turns_have_the_same_level",),
    ),
    Mutant(
        "a lease in relaxed order does not conflict with who takes the same items",
        "layers/staged/_relaxed.py",
        (('        tr.add_read_conflict_range(begin, last + b"\\x00")\n', ""),),
        Kind.relaxed,
        tests=(
            "tests/layers/staged/test_relaxed.py::test_two_that_pick_different_items_do_not_conflict_and_two_that_pick_the_same_do",
            "tests/layers/staged/test_relaxed.py::test_two_dequeues_that_pick_the_same_item_conflict",
        ),
    ),
    Mutant(
        "a turn's items are taken from the end of their level",
        "layers/priority/_priority.py",
        (("rows(tr.snapshot, *own, limit=limit)", "rows(tr.snapshot, *own, limit=limit, reverse=True)"),),
        Kind.weights,
        tests=("tests/layers/priority/test_weighted.py::test_a_take_of_many_starts_with_its_turns_level",),
    ),
    Mutant(
        "a former owner of an exclusive subscription is not refused",
        "layers/subscriptions/subscription.py",
        (("if registration.owner != self._owner:", "if registration.owner is None:"),),
        Kind.exclusive,
        tests=(
            "tests/layers/subscriptions/test_subscriptions_exclusive_all.py::test_a_lease_that_renews_nothing_fails_too_when_it_ends",
        ),
    ),
    Mutant(
        "a lease by the owner does not conflict with a takeover",
        "layers/subscriptions/head.py",
        (("            self.fence(tr)\n        else:", "        else:"),),
        Kind.exclusive,
        tests=(
            "tests/layers/subscriptions/test_subscriptions_exclusive_all.py::test_of_its_owners_lease_and_its_end_at_the_same_time_one_fails",
        ),
    ),
    Mutant(
        "a delivery to the owner does not conflict with what comes to stand in front",
        "layers/subscriptions/head.py",
        (
            (
                "            tr.add_read_conflict_range(self._layout.begin, self._layout.available.key(packed))\n",
                "",
            ),
        ),
        Kind.exclusive,
        tests=(
            "tests/layers/subscriptions/test_subscriptions_exclusive_all.py::test_a_delivery_conflicts_with_an_arrival_ahead_of_it",
        ),
    ),
    Mutant(
        "an attempt at a partition does not look which rows are in",
        "fdbqueue/spark/attempts.py",
        (("                    self._ahead.add(digests)\n", "                    pass\n"),),
        Kind.plain,
        tests=("tests/spark/test_protocol.py::test_a_retry_in_any_order_skips_enqueued_rows",),
    ),
    Mutant(
        "a transaction of rows does not conflict with who claims their partition",
        "fdbqueue/spark/partition_log.py",
        (
            (
                "tr.get(self._keys.record), tr.get(self._owner), self._token)",
                "tr.get(self._keys.record), tr.snapshot.get(self._owner), self._token)",
            ),
        ),
        Kind.plain,
        tests=(
            "tests/spark/test_protocol.py::test_a_transaction_under_way_fails_when_another_attempt_claims_the_partition",
        ),
    ),
    Mutant(
        "a claim of a missed deadline does not conflict with another of the same",
        "layers/smart/_deadlines.py",
        (
            (
                "asks_marker(tr)\n            tr.add_read_conflict_key(row.key)\n            packed = pack(",
                "asks_marker(tr)\n            packed = pack(",
            ),
        ),
        Kind.smart,
        tests=(
            "tests/layers/smart/test_smart_deadlines.py::test_of_two_claims_and_of_a_claim_and_a_move_of_the_item_at_once_one_conflicts",
        ),
    ),
    Mutant(
        "an item is enqueued before all of its blob is written",
        "layers/blobs/writer.py",
        (
            (
                "            while self._sent:\n                await self._settle()\n            if tr is None:",
                "            if tr is None:",
            ),
        ),
        Kind.blobs,
        tests=(
            "tests/layers/blobs/test_blobs_interleavings.py::test_every_commit_of_an_upload_may_fail_or_have_an_unknown_outcome",
        ),
    ),
    Mutant(
        "a sweep does not look whether the lease of an upload has ended",
        "layers/blobs/_uploads.py",
        ((' "little") > now_us:', ' "little") > now_us + 600_000_000:'),),
        Kind.blobs,
        tests=("tests/layers/blobs/test_blobs_interleavings.py::test_a_sweep_leaves_an_upload_whose_lease_lasts",),
    ),
    Mutant(
        "an upload does not conflict with its sweep",
        "layers/blobs/_uploads.py",
        (
            (
                "if not (await value_of(tr.get(self.key))).present():",
                "if not (await value_of(tr.snapshot.get(self.key))).present():",
            ),
        ),
        Kind.blobs,
        tests=(
            "tests/layers/blobs/test_blobs_interleavings.py::test_of_a_sweep_and_the_last_transaction_one_conflicts",
        ),
    ),
    Mutant(
        "acks with follow-ups read the leased item by snapshot",
        "layers/leases/holding.py",
        (("reader = tr if keeps else tr.snapshot", "reader = tr.snapshot"),),
        Kind.results,
        tests=(
            "tests/layers/leases/test_leases_interleavings.py::test_an_ack_of_many_conflicts_with_what_happens_to_one_of_them_and_not_between_them",
        ),
    ),
    Mutant(
        "the follow-ups of a dead letter are removed",
        "layers/results/results.py",
        (('    if how != "dead":', "    if how:"),),
        Kind.results,
        tests=("tests/layers/results/test_follow_ups.py::test_the_follow_up_of_a_dead_letter_waits_for_its_redrive",),
    ),
    Mutant(
        "the ends of the last two members of a group do not conflict",
        "fdbqueue/moves/ends.py",
        (("            tr.add_read_conflict_key(random.choice(members) if members else found[0].key)\n", ""),),
        Kind.results,
        tests=("tests/layers/groups/test_groups.py::test_of_the_last_two_acks_at_once_one_ends_the_group",),
    ),
    Mutant(
        "the end of a group does not conflict with a new member",
        "fdbqueue/moves/ends.py",
        (("        tr.add_read_conflict_range(*self.open)\n        group = ", "        group = "),),
        Kind.results,
        tests=(
            "tests/layers/groups/test_groups.py::test_of_the_last_ack_and_a_new_hold_at_once_one_runs_again",
            "tests/layers/groups/test_groups.py::test_of_the_last_ack_and_an_enqueue_at_once_one_runs_again",
        ),
    ),
    Mutant(
        "a session that has a pointer gets another one, and is handed over twice",
        "layers/sessions/line/slots.py",
        (
            ("        if not (visible_at_us or record.room):\n            return\n", ""),
            ("        if record.pointer and (visible_at_us", "        if record.asleep_until_us and (visible_at_us"),
            ("min(record.room, items)", "items"),
        ),
        Kind.sessions,
        tests=("tests/layers/sessions/test_sessions.py::test_a_session_is_done_in_order_one_item_at_a_time",),
    ),
    Mutant(
        "the token of a session's lease is not looked at",
        "layers/sessions/workers/working.py",
        (
            (
                "turn is None or turn.notes.token != ref.token or turn.pointer.current != pack(ref.position)",
                "turn is None or turn.pointer.current != pack(ref.position)",
            ),
        ),
        Kind.sessions,
        tests=(
            "tests/layers/sessions/test_sessions.py::test_an_expired_lease_gives_session_and_item_back_to_their_places",
        ),
    ),
    Mutant(
        "a worker of a session may end another item than the one in progress",
        "layers/sessions/workers/working.py",
        (
            (
                "turn.notes.token != ref.token or turn.pointer.current != pack(ref.position)",
                "turn.notes.token != ref.token",
            ),
        ),
        Kind.sessions,
        tests=("tests/layers/sessions/test_sessions.py::test_an_acked_lease_is_spent",),
    ),
    Mutant(
        "the pointer of a session without items stays in the line",
        "layers/sessions/line/slots.py",
        (
            (
                "        left = self.drop(tr, session, record, slot)\n",
                "        left = self.drop(tr, session, record, slot)\n" + _STAYS,
            ),
        ),
        Kind.sessions,
        tests=("tests/layers/sessions/test_sessions.py::test_drained_sessions_own_no_key",),
    ),
    Mutant(
        "the quantum of a session is not looked at",
        "layers/sessions/workers/working.py",
        (("        over = used >= self._line.quota(ref.session)\n", "        over = False\n"),),
        Kind.sessions,
        tests=(
            "tests/layers/sessions/test_sessions_fairness.py::test_a_worker_leaves_a_session_after_its_quantum_if_another_waits",
        ),
    ),
    Mutant(
        "an acked session keeps its place in the line",
        "layers/sessions/workers/working.py",
        (('now_us=self._line.leases.now_us(), to="tail")', "now_us=self._line.leases.now_us())"),),
        Kind.sessions,
        tests=(
            "tests/layers/sessions/test_sessions_fairness.py::test_sessions_go_round_when_each_item_is_acked_alone",
        ),
    ),
    Mutant(
        "an urgent item goes to the last level of its session",
        "layers/sessions/session/session.py",
        (("        ranks, noted = (level,) * amount,", "        ranks, noted = (max(level, 1),) * amount,"),),
        Kind.sessions,
        tests=("tests/layers/sessions/test_sessions.py::test_an_urgent_item_comes_first_and_interrupts_nothing",),
    ),
    Mutant(
        "an enqueue does not conflict with the end of its session",
        "layers/sessions/line/line.py",
        (("    tr.add_read_conflict_key(session.guard_key)\n", ""),),
        Kind.sessions,
        tests=(
            "tests/layers/sessions/test_sessions_interleavings.py::test_an_enqueue_sees_that_the_session_ended_first",
        ),
    ),
    Mutant(
        "an item of a session that is changed stays in progress",
        "layers/sessions/operators/editing.py",
        (
            (
                "            await self._line.slots.pass_on(tr, moves, turn, head, now_us=now_us)\n        elif was",
                "            pass\n        elif was",
            ),
        ),
        Kind.sessions,
        tests=("tests/chaos/test_session_oracle.py::test_an_edit_of_the_item_in_progress_breaks_nothing",),
    ),
    Mutant(
        "a consumer acks an item of a session though it was changed since it was read ahead",
        "layers/sessions/session/lease.py",
        (('if not value or one.stored not in (b"", value):', "if not value:"),),
        Kind.sessions,
        tests=(
            "tests/layers/sessions/test_sessions_fence.py::test_an_edit_refuses_what_a_consumer_has_begun_from_the_item_on",
        ),
    ),
    Mutant(
        "a consumer acks what it has begun behind an item that was removed under its hands",
        "layers/sessions/session/lease.py",
        (("            return Compared(first, found, one)\n        found", "            continue\n        found"),),
        Kind.sessions,
        tests=(
            "tests/layers/sessions/test_sessions_fence.py::test_an_edit_refuses_what_a_consumer_has_begun_from_the_item_on",
        ),
    ),
    Mutant(
        "a sweep of items of a session does not conflict with an ack of its consumer",
        "layers/sessions/line/tracking.py",
        (("            await line.note_edit(tr, record.pointer)\n", "            pass\n"),),
        Kind.sessions,
        tests=(
            "tests/layers/sessions/test_sessions_fence.py::test_what_is_swept_under_a_consumers_hands_is_removed_once",
        ),
    ),
    Mutant(
        "a gate's slot is given to another session, and given back too",
        "layers/sessions/line/gates.py",
        (("waiting.stage + 1), left)\n                continue\n", "waiting.stage + 1), left)\n"),),
        Kind.gates,
        tests=("tests/layers/sessions/test_sessions_gates.py::test_an_ack_gives_both_slots_to_the_session_that_waits",),
    ),
    Mutant(
        "a lowered limit of a gate does not converge",
        "layers/sessions/line/gates.py",
        (("max(0, held - wanted)", "0"),),
        Kind.gates,
        tests=(
            "tests/layers/sessions/test_sessions_gates_interleavings.py::test_acks_after_a_lowered_limit_end_exactly_at_it",
        ),
    ),
    Mutant(
        "two sessions take the last slot of a gate",
        "layers/sessions/line/gates.py",
        (
            (
                "        value = await value_of(tr.get(key))\n        return unpack_gate_record",
                "        value = await value_of(tr.snapshot.get(key))\n        return unpack_gate_record",
            ),
        ),
        Kind.gates,
        tests=(
            "tests/layers/sessions/test_sessions_gates_interleavings.py::test_of_two_sessions_that_take_the_last_slot_one_runs_again",
        ),
    ),
    Mutant(
        "a stream claims a batch before its number is in the log",
        "fdbqueue/spark/stream_source.py",
        (
            (
                "        return self._offset(following)\n",
                "        self.partitions(start, self._offset(following))\n        return self._offset(following)\n",
            ),
        ),
        Kind.streams,
        tests=("tests/spark/test_stream_model.py::test_a_kill_at_each_point_of_a_trigger_loses_and_doubles_nothing",),
    ),
    Mutant(
        "a stream acks a batch before it is in the commit log",
        "fdbqueue/spark/stream_source.py",
        (("        return [(place.batch, place", "        self.commit(end)\n        return [(place.batch, place"),),
        Kind.streams,
        tests=("tests/spark/test_stream_model.py::test_a_kill_at_each_point_of_a_trigger_loses_and_doubles_nothing",),
    ),
    Mutant(
        "a task of a stream takes a short read for an empty one",
        "layers/streams/stream.py",
        (
            ("        if found != split.count:\n", "        if False:\n"),
            ("        if record.acked >= batch:\n            raise self._refusals.restored(record, batch)\n", ""),
        ),
        Kind.streams,
        tests=("tests/layers/streams/test_streams.py::test_a_split_that_lacks_items_is_an_error",),
    ),
    Mutant(
        "a consumer begins items that it leased ahead of a pause",
        "layers/consumer/_handling.py",
        (
            (
                "        if not self.permit.is_good() and not await self.may_begin():\n            await holds.give",
                "        if False:\n            await holds.give",
            ),
        ),
        tests=("tests/layers/together/test_pause_stops.py::test_items_that_were_leased_ahead_go_back_at_a_pause",),
    ),
    Mutant(
        "a handler that says ACKED is believed",
        "layers/consumer/_handling.py",
        (("                if await self._is_live(hold, lease):\n", "                if False:\n"),),
        tests=("tests/layers/consumer/test_consumer.py::test_a_handler_that_says_acked_and_has_not_acked_has_failed",),
    ),
    Mutant(
        "a consumer goes on with a session's turn after a pause",
        "layers/consumer/_turns.py",
        (("        if await self._runs(hold) and await self.may_begin():\n", "        if True:\n"),),
        tests=("tests/layers/together/test_pause_stops.py::test_a_consumer_of_a_lone_session_stops_at_a_pause",),
    ),
    Mutant(
        "ack_and_next goes on with a session's turn after a pause",
        "layers/sessions/workers/working.py",
        (("        stopped = stopped or turn.record.is_stopped", "        stopped = turn.record.is_stopped"),),
        tests=(
            "tests/layers/together/test_pause_stops.py::test_a_pause_ends_the_turn_of_a_session_and_keeps_its_place",
        ),
    ),
    Mutant(
        "a drain does not wait for items that a cancelled call puts back",
        "layers/consumer/running.py",
        (("        if left := unfinished():\n", "        if left := unfinished()[:0]:\n"),),
        tests=(
            "tests/layers/consumer/test_consumer_drain.py::test_a_drain_waits_for_items_that_a_cancelled_call_puts_back",
        ),
    ),
    Mutant(
        "a drain believes the one call that took nothing",
        "layers/consumer/running.py",
        (("if held_nothing and await self.is_done():", "if held_nothing:"),),
        tests=("tests/layers/consumer/test_consumer_drain.py::test_a_drain_looks_again_if_its_last_call_left_items",),
    ),
    Mutant(
        "a waiting call takes what was granted to it before a pause",
        "layers/staged/grants.py",
        (("        if paused:\n", "        if False:\n"),),
        tests=("tests/layers/together/test_pause_stops.py::test_an_item_that_was_granted_before_a_pause_goes_back",),
    ),
    Mutant(
        "a waiting call of a subscription takes what was granted to it before a pause",
        "layers/subscriptions/_awaiting.py",
        (("awaited.limit if await self._may_begin(tr) else 0", "awaited.limit"),),
        tests=(
            "tests/layers/together/test_pause_stops.py::test_an_item_that_was_granted_to_a_subscription_before_a_pause_goes_back",
        ),
    ),
    Mutant(
        "an enqueue gives its item to a consumer that waits at a paused queue",
        "layers/subscriptions/waiters.py",
        (("registration.suspended or await is_paused(tr, layout):", "registration.suspended:"),),
        tests=(
            "tests/layers/together/test_pause_stops.py::test_an_enqueue_gives_no_item_to_a_consumer_that_waits_at_a_paused_queue",
        ),
    ),
    Mutant(
        "a look at one database counts for another one",
        "fdbqueue/stored/known.py",
        (('OwnChanges.count and self.looked_in() is getattr(tr, "db", tr)', "OwnChanges.count"),),
        tests=("tests/queue/test_settings.py::test_a_look_at_one_database_says_nothing_of_another",),
    ),
    Mutant(
        "a process relies on a record that its transaction writes",
        "fdbqueue/stored/known.py",
        (("        self.look = look if self.writes() is not tr else Look()\n", "        self.look = look\n"),),
        tests=("tests/queue/test_settings.py::test_a_process_does_not_rely_on_a_record_that_was_never_committed",),
    ),
    Mutant(
        "a staged dequeue that meets a pause relies on its last look",
        "layers/staged/delivery.py",
        (("                self._layout.known.doubt()", "                pass"),),
        tests=(
            "tests/layers/together/test_pause_stops.py::test_an_uncontended_take_sees_a_pause_of_another_process_at_once",
        ),
    ),
    Mutant(
        "a permit is good for a second from after its read",
        "fdbqueue/stored/looks.py",
        (
            (
                "            self._allowed = began\n",
                "            self._allowed = Look.begin()\n",
            ),
        ),
        tests=("tests/layers/together/test_pause_stops.py::test_a_permit_is_good_for_a_second_from_before_its_read",),
    ),
    Mutant(
        "an agent server says Fail! though the outcome of the commit is unknown",
        "fdbqueue/agents/connection.py",
        (("if isinstance(error, FDBError) and leaves_in_doubt(error):", "if isinstance(error, FDBError) and False:"),),
        Kind.agents,
        tests=("tests/agents/test_faults.py::test_data_with_an_unknown_outcome_gets_no_answer",),
    ),
    Mutant(
        "an agent server says OK to the confirm of a lock that is lost",
        "fdbqueue/agents/connection.py",
        (("if await self._queue.confirm.aio(id):", "if await self._queue.confirm.aio(id) or True:"),),
        Kind.agents,
        tests=("tests/agents/test_server.py::test_an_expired_lock_is_confirmed_unless_another_agent_took_the_data",),
    ),
    Mutant(
        "a pause keeps no consumer out",
        "fdbqueue/stored/looks.py",
        (("    return found.paused is not None\n", "    return False\n"),),
        Kind.plain,
        tests=("tests/layers/together/test_pause_stops.py::test_an_item_that_was_granted_before_a_pause_goes_back",),
    ),
    Mutant(
        "a process with another codec is let in",
        "fdbqueue/stored/looks.py",
        (("    if fits(codec, registered):\n        return\n", "    if registered:\n        return\n"),),
        Kind.plain,
        tests=(
            "tests/queue/test_codecs_checked.py::test_another_codec_is_refused_by_every_verb_which_says_which_one_it_is",
        ),
    ),
    Mutant(
        "an operator's change leaves the lease of the item alive",
        "fdbqueue/verbs/editing.py",
        (('        elif one.state != "dead":\n', '        elif one.state == "available":\n'),),
        Kind.plain,
        tests=(
            "tests/layers/together/test_by_position.py::test_an_updated_item_keeps_its_place_and_its_holder_learns_it",
        ),
    ),
    Mutant(
        "an operator's cancel leaves the timer of the lease",
        "fdbqueue/moves/moves.py",
        (
            (
                "        self.leave(one.state, one.packed, notes)\n",
                "        self.leave(one.state, one.packed, structs.replace(notes, expires_at_us=1))\n",
            ),
        ),
        Kind.plain,
        tests=("tests/layers/together/test_by_position.py::test_a_cancelled_item_is_gone_and_its_holder_learns_it",),
    ),
    Mutant(
        "a drain ends when a call has taken nothing, whatever it holds",
        "layers/consumer/running.py",
        (("if held_nothing and await self.is_done():", "if await self.is_done():"),),
        Kind.plain,
        tests=(
            "tests/layers/consumer/test_consumer_drain.py::test_a_drain_waits_for_an_item_in_hand_that_may_come_back",
        ),
    ),
    Mutant(
        "a delivery to one of several waiting calls overlooks a change of their request",
        "layers/subscriptions/waiters.py",
        (("        tr.add_read_conflict_key(request.key)\n        self.put(", "        self.put("),),
        Kind.subscriptions,
        tests=(
            "tests/layers/subscriptions/test_subscriptions_shared.py::test_a_delivery_to_one_of_several_calls_conflicts_with_a_change_of_their_request",
        ),
    ),
    Mutant(
        "a delivery replaces the grant to another call of the same request",
        "layers/subscriptions/waiters.py",
        (
            (
                "self.put(tr, request.key, _without_first(wish, 1))",
                "self.put(tr, request.key, replace(wish, wanted=wish.wanted - 1))",
            ),
        ),
        Kind.subscriptions,
        tests=(
            "tests/layers/subscriptions/test_subscriptions_shared.py::test_immediate_enqueues_find_a_call_as_long_as_one_waits",
        ),
    ),
    Mutant(
        "a waiting call does not give back what the leader before it took and left",
        "layers/subscriptions/_awaiting.py",
        (("if self._in_doubt or self._tried.leases:", "if False:"),),
        Kind.subscriptions,
        tests=(
            "tests/layers/subscriptions/test_subscriptions_shared.py::test_what_a_leader_took_as_it_was_cancelled_goes_to_the_next_call",
        ),
    ),
    Mutant(
        "a long check does not watch the queue",
        "fdbqueue/reads/check.py",
        (("        tr.add_read_conflict_range(*self._range)\n", ""),),
        tests=(
            "tests/queue/test_checking.py::test_one_change_during_a_long_check_is_noticed_and_a_change_elsewhere_is_not",
        ),
    ),
    Mutant(
        "a long check's next watch begins when the last one has ended",
        "fdbqueue/reads/check.py",
        (
            (
                "before, self._watch = self._watch, self._begin()\n            wait_in_thread(before.commit())\n",
                "wait_in_thread(self._watch.commit())\n            self._watch = self._begin()\n",
            ),
        ),
        tests=("tests/queue/test_checking.py::test_a_watch_begins_before_the_last_one_ends",),
    ),
    Mutant(
        "a watch of unknown outcome has seen no change",
        "fdbqueue/reads/check.py",
        (("            self._changed = True  #", "            self._changed = False  #"),),
        tests=("tests/queue/test_checking.py::test_a_watch_whose_end_nobody_knows_has_seen_a_change",),
    ),
    Mutant(
        "a long check's problems are told though the queue changed",
        "fdbqueue/reads/check.py",
        (("if watched.changed() else _sure(report)", "if False else _sure(report)"),),
        tests=(
            "tests/queue/test_checking.py::test_one_change_during_a_long_check_is_noticed_and_a_change_elsewhere_is_not",
        ),
    ),
    Mutant(
        "a cancelled lease keeps what it took",
        "layers/leases/taking.py",
        (("and tried and (leaves_in_doubt", "and False and (leaves_in_doubt"),),
        tests=(
            "tests/layers/together/test_cancelled_calls.py::test_a_caller_that_goes_during_the_commit_of_a_lease_keeps_nothing",
        ),
    ),
    Mutant(
        "giving back what a cancelled lease took does not conflict with its commit",
        "layers/leases/taking.py",
        (("                tr.add_write_conflict_key(layout.available.key(got.packed))\n", ""),),
        tests=(
            "tests/layers/together/test_cancelled_calls.py::test_a_caller_that_goes_during_the_commit_of_a_lease_keeps_nothing",
        ),
    ),
    Mutant(
        "a cancelled ack_and_next keeps the next item's session",
        "layers/sessions/workers/keeping.py",
        (("await finish(self._work(), self)", "await finish(self._work())"),),
        tests=(
            "tests/layers/together/test_cancelled_calls.py::test_an_ack_and_next_that_is_cancelled_at_any_wait_holds_no_session_that_was_acked",
        ),
    ),
    Mutant(
        "an interrupted ack_and_next keeps the next item's session",
        "layers/sessions/workers/keeping.py",
        (("            if not self.handed_over:  #", "            if False:  #"),),
        tests=(
            "tests/layers/together/test_cancelled_calls.py::test_ctrl_c_at_any_line_of_an_ack_and_next_holds_no_session_that_was_acked",
        ),
    ),
    Mutant(
        "a lease in doubt keeps what it took",
        "layers/leases/taking.py",
        (("(leaves_in_doubt(error) or not isinstance(error, Exception))", "not isinstance(error, Exception)"),),
        tests=(
            "tests/layers/together/test_cancelled_calls.py::test_a_caller_that_goes_during_the_commit_of_a_lease_keeps_nothing",
        ),
    ),
    Mutant(
        "an ack_and_next in doubt keeps the next item's session",
        "layers/sessions/workers/keeping.py",
        (("self._tried is not None and leaves_in_doubt(error)", "False"),),
        tests=(
            "tests/layers/together/test_cancelled_calls.py::test_an_ack_and_next_that_times_out_in_its_commit_holds_no_session_that_was_acked",
        ),
    ),
    Mutant(
        "awaited verbs of one transaction run at the same time",
        "fdbqueue/engine/verb.py",
        (("run_in_order(tr, begun) if is_transaction(tr)", "run_async(begun) if is_transaction(tr)"),),
        tests=("tests/layers/together/test_side_by_side.py::test_items_are_taken_once",),
    ),
    Mutant(
        "a process waits at each commit for one that was stopped in its sync",
        "fdbqueue/engine/embedded/store/disk/disk.py",
        (
            (
                "            self._shares_syncs = time.monotonic() < until\n",
                "            if time.monotonic() >= until:\n                break\n",
            ),
        ),
        tests=(
            "tests/unit/test_shared_syncs.py::test_a_process_that_is_stopped_in_its_sync_holds_up_one_commit_of_another_process",
        ),
    ),
    Mutant(
        "a process that waited for a sync in vain never waits for one again",
        "fdbqueue/engine/embedded/store/disk/disk.py",
        (("        self._shares_syncs = self._shares_syncs or locked\n", ""),),
        tests=(
            "tests/unit/test_shared_syncs.py::test_once_the_lock_was_free_a_process_waits_again_for_the_sync_of_another",
        ),
    ),
    Mutant(
        "a link in the folder is followed",
        "fdbqueue/engine/embedded/store/disk/folder.py",
        (("_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | ", "_FLAGS: Final = os.O_CLOEXEC | "),),
        tests=("tests/unit/test_folder_files.py::test_a_link_is_refused_and_its_target_is_left_as_it_is",),
    ),
    Mutant(
        "what is no regular file is opened",
        "fdbqueue/engine/embedded/store/disk/folder.py",
        (
            (
                "    if not stat.S_ISREG(found.st_mode):\n        raise _irregular(path, name, found)\n    folder",
                "    folder",
            ),
        ),
        tests=("tests/unit/test_folder_files.py::test_a_pipe_or_a_folder_is_refused_at_once",),
    ),
    Mutant(
        "LMDB's files are not looked at again",
        "fdbqueue/engine/embedded/store/disk/folder.py",
        (("    if [look(path, name) for name in (DATA, LOCK)] != before:\n", "    if not before:\n"),),
        tests=("tests/unit/test_folder_files.py::test_a_file_that_is_replaced_while_lmdb_opens_it_is_refused",),
    ),
    Mutant(
        "a stranger's file is trusted",
        "fdbqueue/engine/embedded/store/disk/folder.py",
        (("found.st_uid not in (os.geteuid(), 0, folder.st_uid)", "found.st_uid < 0"),),
        tests=("tests/unit/test_folder_users.py::test_a_strangers_file_in_a_folder_that_all_may_write_is_refused",),
    ),
    Mutant(
        "a stranger's folder is trusted",
        "fdbqueue/engine/embedded/store/disk/folder.py",
        (("found.st_uid not in (os.geteuid(), 0) and os.geteuid()", "found.st_uid < 0"),),
        tests=("tests/unit/test_folder_users.py::test_a_strangers_folder_that_all_may_write_is_refused",),
    ),
    Mutant(
        "files do not follow their folder",
        "fdbqueue/engine/embedded/store/disk/folder.py",
        (("os.fchmod(fd, 0o660 if is_shared else 0o600)", "os.fchmod(fd, 0o644)"),),
        tests=(
            "tests/unit/test_folder_files.py::test_files_follow_their_folder",
            "tests/unit/test_folder_users.py::test_a_user_who_may_only_read_the_folder_can_lock_none_of_its_files",
        ),
    ),
    Mutant(
        "any group gets the rights of the folder's",
        "fdbqueue/engine/embedded/store/disk/folder.py",
        (("    is_shared = is_shared and os.fstat(fd).st_gid == folder.st_gid\n", ""),),
        tests=("tests/unit/test_folder_users.py::test_a_group_that_the_maker_is_not_a_member_of_gets_no_rights",),
    ),
    Mutant(
        "what root makes stays root's",
        "fdbqueue/engine/embedded/store/disk/folder.py",
        (("folder.st_uid if os.geteuid() == 0 else -1", "-1"),),
        tests=("tests/unit/test_folder_users.py::test_what_root_makes_is_the_folders_owners",),
    ),
    Mutant(
        "another PID namespace is not noticed",
        "fdbqueue/engine/embedded/store/disk/locks.py",
        (("                    if stranger is None:\n", "                    if True:\n"),),
        tests=(
            "tests/concurrency/test_pid_namespaces.py::test_a_process_of_another_namespace_is_refused_and_told_by_whom",
        ),
    ),
    Mutant(
        "the readers of a program that exec has replaced count",
        "fdbqueue/engine/embedded/store/disk/files.py",
        (("if not self.folder_lock.alone and str(os.getpid())", "if False and str(os.getpid())"),),
        tests=("tests/concurrency/test_pid_namespaces.py::test_a_reader_that_exec_has_replaced_holds_no_pages",),
    ),
    Mutant(
        "two threads look at a class at once",
        "fdbqueue/base/typed.py",
        (("    with _lock:\n", "    if True:\n"),),
        tests=("tests/unit/test_typed.py::test_two_threads_may_use_a_type_first",),
    ),
    Mutant(
        "why leases are lost is asked by reads one behind the other",
        "fdbqueue/verbs/editing.py",
        (
            ("[(packed, tr.snapshot.get(key)) for packed, key in outcomes.items()]", "list(outcomes.items())"),
            ("        ended = await value_of(read)\n", "        ended = await value_of(tr.snapshot.get(read))\n"),
        ),
        tests=("tests/layers/together/test_round_trips.py::test_the_round_trips_of_a_call_do_not_grow_with_its_items",),
    ),
    Mutant(
        "stored seconds may have any number",
        "fdbqueue/stored/items.py",
        (("    keep_s: Seconds = ", "    keep_s: int = "),),
        tests=(
            "tests/layers/leases/test_leases_unreadable.py::test_an_item_whose_numbers_are_out_of_range_is_refused_and_can_be_removed",
        ),
    ),
    Mutant(
        "follow-ups may be in no queue",
        "fdbqueue/stored/items.py",
        (("    if notes.then or notes.beside:\n", "    if False:\n"),),
        tests=(
            "tests/layers/leases/test_leases_unreadable.py::test_an_item_whose_numbers_are_out_of_range_is_refused_and_can_be_removed",
        ),
    ),
    Mutant(
        "the text of a session that looks like a tuple is the text itself",
        "fdbqueue/stored/names.py",
        (('        and name[0] != "["\n', ""),),
        tests=(
            "tests/unit/test_names.py::test_the_text_of_a_session_or_a_gate_names_it_and_no_other",
            "tests/web/test_names.py::test_the_session_that_a_link_shows_is_the_one_that_its_button_pauses",
        ),
    ),
    Mutant(
        "the text of a name may have control characters",
        "fdbqueue/stored/names.py",
        (
            (
                "        and (name.isprintable() or not any(unicodedata.category(char) in UNSEEN for char in name))\n",
                "",
            ),
        ),
        tests=("tests/unit/test_names.py::test_the_text_of_a_queue_names_that_queue_and_no_other",),
    ),
    Mutant(
        "the page shows characters as they are",
        "fdbqueue/web/app.py",
        (("            finalize=shown.clean,\n", ""),),
        tests=("tests/web/test_names.py::test_no_page_shows_control_characters_and_none_is_broken_by_a_name",),
    ),
    Mutant(
        "the keys of an item that can't be read are not asked",
        "fdbqueue/moves/rescue.py",
        (("    if lost:\n", "    if False:\n"),),
        tests=(
            "tests/layers/together/test_rescue.py::test_its_completion_ends",
            "tests/layers/together/test_rescue.py::test_its_group_ends_and_releases_the_follow_up",
            "tests/layers/together/test_rescue.py::test_its_smart_index_deadlines_and_copies_are_cleared",
        ),
    ),
    Mutant(
        "the look for the keys of an item that can't be read has no limit",
        "fdbqueue/moves/rescue.py",
        (("        while left > 0:\n", "        while True:\n"), ("limit=min(left, PAGE_KEYS)", "limit=PAGE_KEYS")),
        tests=("tests/layers/together/test_rescue.py::test_a_scan_ends_at_its_limit",),
    ),
    Mutant(
        "a member whose item is nowhere stays in its cancelled group",
        "layers/groups/group.py",
        (("    tr.clear(group_keys(layout, name).members + packed)\n", ""),),
        tests=(
            "tests/layers/together/test_rescue.py::test_a_cancel_of_the_group_ends_members_whose_items_are_nowhere",
        ),
    ),
    Mutant(
        "a follow-up in a session that can't be read stops every lease",
        "layers/results/results.py",
        (("with suppress(FormatError):", "with suppress(ZeroDivisionError):"),),
        tests=(
            "tests/layers/together/test_rescue.py::test_a_follow_up_in_a_session_that_cannot_be_read_holds_up_no_lease",
        ),
    ),
    Mutant(
        "a range of keys goes by their first bytes",
        "fdbqueue/engine/keys.py",
        (("    return prefix, prefix + _NO_ELEMENT\n", "    return prefix, strinc(prefix)\n"),),
        tests=("tests/queue/test_names.py::test_no_verb_on_a_queue_changes_or_shows_another_one",),
    ),
    Mutant(
        "a key is within all names whose bytes begin it",
        "fdbqueue/engine/keys.py",
        (
            (
                "    return key.startswith(prefix) and key[len(prefix) : len(prefix) + 1] != _NO_ELEMENT\n",
                "    return key.startswith(prefix)\n",
            ),
        ),
        tests=("tests/unit/test_keys.py::test_a_name_has_exactly_the_tuples_below_it",),
    ),
    Mutant(
        "an enqueue registers a name within another one",
        "fdbqueue/stored/looks.py",
        (
            (
                "        await refuse_nested(tr, layout, looking=found.nested)\n        return True",
                "        return True",
            ),
        ),
        tests=("tests/queue/test_writers.py::test_a_writer_refuses_a_name_within_another_one",),
    ),
    Mutant(
        "register takes a name within another one",
        "fdbqueue/stored/catalogue.py",
        (("    else:\n        await refuse_nested(tr, layout)\n    if own is", "    if own is"),),
        tests=("tests/queue/test_names.py::test_register_refuses_a_name_within_another_one",),
    ),
    Mutant(
        "a pause is written among the keys of another queue",
        "fdbqueue/verbs/administered.py",
        (
            (
                "            await refuse_others_keys(tr, self.layout)\n            write_pause(",
                "            write_pause(",
            ),
        ),
        tests=("tests/queue/test_names.py::test_a_setting_of_a_name_within_a_queue_is_refused",),
    ),
    Mutant(
        "a quota is written among the keys of another queue",
        "fdbqueue/verbs/administered.py",
        (
            (
                "            await refuse_others_keys(tr, self.layout)\n            tr.set(self.layout.type_key",
                "            tr.set(self.layout.type_key",
            ),
        ),
        tests=("tests/queue/test_names.py::test_a_setting_of_a_name_within_a_queue_is_refused",),
    ),
    Mutant(
        "a call with a transaction of its own writes among the keys of another queue",
        "fdbqueue/writes/once.py",
        (("        if not (looks or self._layout.known.is_beside(tr)):\n", "        if False:\n"),),
        tests=(
            "tests/layers/together/test_nested_names.py::test_a_call_that_finds_nothing_does_no_harm_to_the_queue_around",
        ),
    ),
    Mutant(
        "a call in the caller's transaction writes among the keys of another queue",
        "fdbqueue/verbs/queue.py",
        (("        if self.layout.known.is_beside(given):\n", "        if True:\n"),),
        tests=("tests/layers/together/test_nested_names.py::test_a_verb_commits_no_key_under_a_nested_name",),
    ),
    Mutant(
        "a clear of sessions removes a queue within this one",
        "layers/sessions/operators/operators.py",
        (("            await refuse_others_keys(tr, self.queue.layout, clears=True)\n", ""),),
        tests=("tests/layers/together/test_nested_names.py::test_a_clear_of_sessions_keeps_a_queue_that_lies_within",),
    ),
    Mutant(
        "a staged batch of Spark is written among the keys of another queue",
        "fdbqueue/spark/sink_batches.py",
        (("        await refuse_others_keys(tr, keys.layout)\n        if codec", "        if codec"),),
        tests=("tests/queue/test_writers.py::test_a_writer_refuses_a_name_within_another_one",),
    ),
    Mutant(
        "a batch of Spark is written among the keys of another queue",
        "fdbqueue/spark/sink_batches.py",
        (("            await refuse_others_keys(tr, keys.layout)\n            record", "            record"),),
        tests=(
            "tests/layers/together/test_nested_names.py::test_a_record_of_spark_is_not_written_under_a_nested_name",
        ),
    ),
    Mutant(
        "a job is written among the keys of another queue",
        "fdbqueue/spark/loads.py",
        (
            (
                "        await refuse_others_keys(tr, keys.layout)\n        await refuse_bypass",
                "        await refuse_bypass",
            ),
        ),
        tests=(
            "tests/layers/together/test_nested_names.py::test_a_record_of_spark_is_not_written_under_a_nested_name",
        ),
    ),
    Mutant(
        "the report of a job is written among the keys of another queue",
        "fdbqueue/spark/loads.py",
        (
            (
                "        await refuse_others_keys(tr, keys.layout)\n        await _refuse_other",
                "        await _refuse_other",
            ),
        ),
        tests=(
            "tests/layers/together/test_nested_names.py::test_a_record_of_spark_is_not_written_under_a_nested_name",
        ),
    ),
    Mutant(
        "a name within another one is told as a bad value",
        "fdbqueue/cli/input.py",
        (("        except NestedQueue:\n            raise  # it is about the queue, and not about this value\n", ""),),
        tests=("tests/cli/test_queues.py::test_a_name_within_a_queue_is_wrong_usage_and_the_remedy_is_a_command",),
    ),
    Mutant(
        "the page ends by the signal that stopped it",
        "fdbqueue/cli/serving.py",
        (('        with OnSignals(lambda: setattr(server, "should_exit", True)):\n', "        if True:\n"),),
        tests=(
            "tests/layers/together/test_ended_by_signals.py::test_a_command_that_runs_until_a_signal_gives_back_what_it_has_not_done",
        ),
    ),
    Mutant(
        "a watchdog says that it runs before a signal can stop it",
        "fdbqueue/cli/watchdog.py",
        (
            (
                "        with OnSignals(stop), Thr",
                "        typer.echo('Looking', err=True)\n        with OnSignals(stop), Thr",
            ),
        ),
        tests=(
            "tests/layers/together/test_ended_by_signals.py::test_a_command_that_runs_until_a_signal_gives_back_what_it_has_not_done",
        ),
    ),
    Mutant(
        "a session that is named like a tuple is shown as one",
        "fdbqueue/stored/names.py",
        (
            (
                '    return {"text": name} if isinstance(name, str) and not _is_plain(name) else name_json(name)\n',
                "    return name_json(name)\n",
            ),
        ),
        tests=("tests/cli/test_sessions.py::test_the_names_of_sessions_in_json_can_be_given_back",),
    ),
    Mutant(
        "a signal at a question is taken for a no",
        "fdbqueue/cli/items.py",
        (
            (
                "        tell()\n        raise\n\n\ndef _answered",
                "        raise typer.Abort from None\n\n\ndef _answered",
            ),
        ),
        tests=("tests/cli/test_terminal.py::test_a_signal_at_a_question_ends_the_command_by_its_own_exit_code",),
    ),
    Mutant(
        "a clear removes a queue within this one",
        "fdbqueue/verbs/administered.py",
        (("        await refuse_others_keys(tr, self.layout, clears=True)\n", ""),),
        tests=("tests/queue/test_names.py::test_a_clear_keeps_a_queue_that_lies_within",),
    ),
    Mutant(
        "a clear of a registered queue removes one within it",
        "fdbqueue/stored/looks.py",
        (("    if clears or not registered:\n", "    if not registered:\n"),),
        tests=("tests/queue/test_names.py::test_a_clear_of_a_registered_queue_keeps_one_that_lies_within",),
    ),
    Mutant(
        "two registrations of names within each other do not conflict",
        "fdbqueue/stored/catalogue.py",
        (
            ("    tr.add_read_conflict_range(*below(layout.catalogue_key))\n", ""),
            ("        tr.add_read_conflict_key(CATALOGUE + one)\n", "        pass\n"),
        ),
        tests=("tests/queue/test_names.py::test_of_two_names_at_the_same_time_one_is_registered",),
    ),
    Mutant(
        "a rename takes a name within another one",
        "fdbqueue/verbs/renaming.py",
        (("        await refuse_nested(tr, target)\n", ""),),
        tests=("tests/queue/test_names.py::test_a_rename_to_a_name_within_another_one_is_refused",),
    ),
    Mutant(
        "a queue may have the registrations among its keys",
        "fdbqueue/stored/layout.py",
        (("        _check_own(self.prefix)\n", ""),),
        tests=("tests/queue/test_names.py::test_a_prefix_with_the_keys_of_the_catalogue_or_the_database_is_refused",),
    ),
    Mutant(
        "the position of a session's item is not there for other layers",
        "layers/sessions/session/address.py",
        (("        if (named := session_in(position)) is not None:\n", "        if (named := None) is not None:\n"),),
        tests=("tests/layers/together/test_positions_of_sessions.py::test_every_verb_by_position_says_whose_it_is",),
    ),
    Mutant(
        "an item with a level that has left a queue with levels is a session's",
        "layers/sessions/session/address.py",
        (("    if not (await read_high_water_mark(tr, layout)).order:\n", "    if True:\n"),),
        tests=(
            "tests/layers/together/test_positions_of_sessions.py::test_an_item_that_has_left_a_queue_with_levels_is_not_there",
        ),
    ),
    Mutant(
        "a helper for layers takes what is no transaction",
        "layers/sessions/operators/operators.py",
        (('        only_transaction(tr, "Sessions.stored_at")\n', ""),),
        tests=(
            "tests/layers/together/test_every_public_method.py::test_a_public_method_refuses_wrong_arguments_by_its_own_words",
        ),
    ),
    Mutant(
        "the path of an import may be an open file",
        "fdbqueue/base/arguments.py",
        (("    if not isinstance(path, str | os.PathLike) or", "    if False and"),),
        tests=(
            "tests/layers/together/test_every_public_method.py::test_a_public_method_refuses_wrong_arguments_by_its_own_words",
        ),
    ),
    Mutant(
        "a foreign timer is read as a timer",
        "fdbqueue/stored/shapes.py",
        (("            if not check(value):\n", "            if False:\n"),),
        tests=(
            "tests/layers/leases/test_leases_foreign_keys.py::test_takes_pass_a_foreign_timer_by_and_a_check_names_and_removes_it",
        ),
    ),
    Mutant(
        "due timers behind foreign keys are not looked for",
        "layers/leases/timers.py",
        (("    if len(first) < limit or (len(due) == limit and known.timers_passed is None):\n", "    if True:\n"),),
        tests=("tests/layers/leases/test_leases_foreign_keys.py::test_due_timers_behind_foreign_ones_are_reached",),
    ),
    Mutant(
        "a look behind timers that can't be fired begins anew",
        "layers/leases/timers.py",
        (("        layout.known.timers_passed = due[-1].key  #", "        pass  #"),),
        tests=(
            "tests/layers/leases/test_leases_foreign_keys.py::test_due_timers_behind_those_of_unreadable_items_are_reached",
        ),
    ),
    Mutant(
        "foreign keys among items have positions",
        "fdbqueue/stored/positions.py",
        (
            (
                "                raise foreign_item(key)\n            if key[end",
                "                pass\n            if key[end",
            ),
        ),
        tests=(
            "tests/layers/leases/test_leases_foreign_keys.py::test_a_key_among_the_items_without_a_position_is_named_and_removed",
        ),
    ),
    Mutant(
        "an import decodes pages that are larger than the footer says",
        "fdbqueue/transfer/parquet.py",
        (("if size > chunk.total_uncompressed_size:", "if False:"),),
        tests=(
            "tests/transfer/test_parquet_pages.py::test_a_page_that_lies_about_itself_is_refused_before_it_is_decoded",
        ),
    ),
    Mutant(
        "an import decodes pages with more values than the footer says",
        "fdbqueue/transfer/parquet.py",
        (("if values != chunk.num_values:", "if False:"),),
        tests=("tests/transfer/test_parquet_pages.py::test_a_page_that_lies_about_its_values_is_refused",),
    ),
    Mutant(
        "an import makes room for a dictionary of any length",
        "fdbqueue/transfer/parquet.py",
        (("4 * page.values > page.size", "False"),),
        tests=("tests/transfer/test_parquet_pages.py::test_a_page_that_lies_about_its_values_is_refused",),
    ),
    Mutant(
        "an import decodes values that share their beginnings",
        "fdbqueue/transfer/parquet.py",
        (("if page.encoding == DELTA_BYTE_ARRAY:", "if False:"),),
        tests=("tests/transfer/test_parquet_pages.py::test_values_whose_beginnings_are_shared_are_refused",),
    ),
    Mutant(
        "an import reads row groups of any number of rows",
        "fdbqueue/transfer/parquet.py",
        (("if not 0 <= group.num_rows <= MAX_GROUP_ROWS:", "if False:"),),
        tests=("tests/transfer/test_parquet_pages.py::test_a_row_group_has_no_more_rows_than_other_programs_write",),
    ),
    Mutant(
        "an import reads a footer of any length",
        "fdbqueue/transfer/parquet.py",
        ((", thrift_container_size_limit=MAX_GROUPS", ""),),
        tests=(
            "tests/transfer/test_parquet_pages.py::test_a_footer_with_more_than_any_export_has_is_not_read_to_its_end",
        ),
    ),
    Mutant(
        "the page decodes values of any size",
        "fdbqueue/web/shown.py",
        (
            ("if len(data) <= CHECKED_BYTES else None", "if True else None"),
            ("if len(data) <= MOST_CHARACTERS:", "if True:"),
        ),
        tests=("tests/web/test_pages.py::test_a_page_takes_no_more_memory_than_what_it_shows",),
    ),
    Mutant(
        "the page indents the whole of a value",
        "fdbqueue/web/shown.py",
        (("            if len(text) > most:\n                break\n", ""),),
        tests=("tests/web/test_pages.py::test_a_page_takes_no_more_memory_than_what_it_shows",),
    ),
    Mutant(
        "an origin that is no address is an error of the page",
        "fdbqueue/web/guard.py",
        (("        except ValueError:  # it is no address\n", "        except KeyError:\n"),),
        tests=("tests/web/test_changes.py::test_a_form_of_another_page_is_refused",),
    ),
    Mutant(
        "an expired lease is a problem though consumers run",
        "fdbqueue/observe/judging.py",
        (("    if not seen.may_have_consumers:\n        return alone, f", "    if True:\n        return alone, f"),),
        tests=("tests/observe/test_troubles.py::test_an_expired_lease_is_a_note_while_consumers_run",),
    ),
    Mutant(
        "consumers that run excuse an expired lease for ever",
        "fdbqueue/observe/judging.py",
        (("    if seen.now - since <= MOMENT_SECONDS:\n", "    if True:\n"),),
        tests=("tests/observe/test_troubles.py::test_consumers_that_run_excuse_no_lease_for_long",),
    ),
    Mutant(
        "troubles read the records of all sessions",
        "fdbqueue/observe/reading.py",
        (
            (
                "    recording = started(rows(view, span.start, span.stop, limit=most))\n",
                "    recording = started(rows(view, span.start, span.stop, limit=0))\n",
            ),
        ),
        tests=("tests/observe/test_troubles.py::test_blocked_sessions_are_looked_for_among_so_many",),
    ),
    Mutant(
        "a check reads all items of a session twice",
        "fdbqueue/reads/check.py",
        (("        if not bulk and (behind := ", "        if False and (behind := "),),
        tests=("tests/queue/test_checking.py::test_a_smart_check_and_one_of_sessions_read_each_item_once",),
    ),
    Mutant(
        "a key that begins as no family does is not foreign",
        "fdbqueue/stored/key_table.py",
        (
            (
                "    return any(\n        is_",
                "    return _first_element(tail) not in _BY_BEGIN or any(\n        is_",
            ),
        ),
        tests=(
            "tests/layers/leases/test_leases_foreign_keys.py::test_any_key_that_the_table_does_not_have_is_named_and_removed",
        ),
    ),
    Mutant(
        "no key among those of sessions is foreign",
        "fdbqueue/stored/key_table.py",
        (("(not shape.is_nested or is_own(parts[-1]))", "True"),),
        tests=(
            "tests/layers/leases/test_leases_foreign_keys.py::test_any_key_that_the_table_does_not_have_is_named_and_removed",
        ),
    ),
    Mutant(
        "keys of a user's layer are foreign",
        "fdbqueue/reads/check.py",
        (("(*part.owns, *(", "(*(), *("),),
        tests=(
            "tests/layers/leases/test_leases_foreign_keys.py::test_keys_of_queues_and_layers_below_a_name_are_not_removed",
        ),
    ),
    Mutant(
        "a key of a job is foreign",
        "fdbqueue/stored/key_table.py",
        (('Row(("job",), \'job, "owner", partition\'', 'Row(("job",), \'job, "own", partition\''),),
        tests=("tests/layers/together/test_own_keys.py::test_keys_that_few_programs_write_are_own",),
    ),
    Mutant(
        "a damaged slot whose item waited gives back slots of gates that it does not have",
        "layers/sessions/line/mending.py",
        (("    return RESTING if rests else IN_LINE", "    return IN_LINE"),),
        tests=(
            "tests/layers/together/test_damaged_records.py::test_a_damaged_slot_is_written_again_wherever_its_pointer_is",
        ),
    ),
    Mutant(
        "troubles do not look at slots",
        "fdbqueue/observe/reading.py",
        (("    await _note(one, records)\n", "    await records\n"),),
        tests=("tests/layers/together/test_damaged_records.py::test_a_damaged_slot_of_a_session_is_named",),
    ),
    Mutant(
        "troubles do not look at the group of the first item",
        "fdbqueue/observe/reading.py",
        (("    await _note(one, _group(tr, layout, one.first))\n", ""),),
        tests=("tests/layers/together/test_damaged_records.py::test_a_damaged_group_is_named_and_can_be_cancelled",),
    ),
    Mutant(
        "a damaged quota can't be set again",
        "fdbqueue/verbs/administered.py",
        (("if not is_quota(bytes(stored)):", "if quota_of(self.layout, bytes(stored)) is None:"),),
        tests=("tests/layers/together/test_named_keys.py::test_the_way_out_that_the_error_names_works",),
    ),
    Mutant(
        "a damaged codec of states stays",
        "fdbqueue/stored/catalogue.py",
        (("        await _remove_damaged_codec(tr, layout)\n", "        pass\n"),),
        tests=("tests/layers/together/test_damaged_records.py::test_a_damaged_codec_of_states_is_named",),
    ),
    Mutant(
        "a damaged schedule hides the others",
        "layers/schedules/schedules.py",
        (
            (
                "        except FormatError as error:\n            return S",
                "        except KeyError as error:\n            return S",
            ),
        ),
        tests=(
            "tests/layers/together/test_damaged_records.py::test_a_damaged_schedule_names_its_key_and_can_be_removed",
        ),
    ),
    Mutant(
        "a foreign key in front breaks the list of troubles",
        "fdbqueue/observe/judging.py",
        (
            (
                "        return place.position(row.key)\n    except FormatError:\n        return None\n",
                "        return place.position(row.key)\n    finally:\n        pass\n",
            ),
        ),
        tests=("tests/observe/test_troubles.py::test_foreign_keys_anywhere_break_no_look",),
    ),
    Mutant(
        "the front page is not sorted by troubles",
        "fdbqueue/web/app.py",
        (("        wanted.sort(key=lambda info: rank_of(", "        wanted.sort(key=lambda info: () and rank_of("),),
        tests=("tests/observe/test_troubles.py::test_all_views_tell_the_same_troubles_alone_and_in_pairs",),
    ),
    Mutant(
        "a client may take any time to send its request",
        "fdbqueue/base/http.py",
        (("        if self.waits:\n            self.transport.abort()\n", "        pass\n"),),
        tests=("tests/web/test_slow_clients.py::test_slow_clients_keep_no_fast_one_out_and_are_let_go",),
    ),
    Mutant(
        "a slow client gives no way to a new one",
        "fdbqueue/base/http.py",
        (("            min(idle, key=lambda one: one.begun).transport.abort()\n", "            return False\n"),),
        tests=("tests/web/test_slow_clients.py::test_slow_clients_keep_no_fast_one_out_and_are_let_go",),
    ),
    Mutant(
        "a check of a file does not compare a page's number",
        "fdbqueue/engine/embedded/store/disk/data_file.py",
        (("        if own != number:", "        if False:"),),
        tests=("tests/cli/test_check_file.py::test_damage_inside_a_page_is_found",),
    ),
    Mutant(
        "a check of a file does not look at the order of keys",
        "fdbqueue/engine/embedded/store/disk/data_file.py",
        (('                raise _Wrong("its keys are not in order")\n', "                pass\n"),),
        tests=("tests/cli/test_check_file.py::test_damage_inside_a_page_is_found",),
    ),
    Mutant(
        "a check of a file does not count rows",
        "fdbqueue/engine/embedded/store/disk/data_file.py",
        (("        if len(self.damages) == before and self._counts != told:", "        if False:"),),
        tests=("tests/cli/test_check_file.py::test_damage_inside_a_page_is_found",),
    ),
    Mutant(
        "an import takes two items at one position",
        "fdbqueue/transfer/files.py",
        (
            ("                if packed == before:\n", "                if False:\n"),
            ("                if packed < before:\n", "                if False:\n"),
        ),
        tests=(
            "tests/transfer/test_export.py::test_a_record_that_no_queue_can_have_is_named_before_any_key_is_touched",
            "tests/transfer/test_export.py::test_a_row_with_the_position_of_another_is_named",
        ),
    ),
    Mutant(
        "an import takes the last index",
        "fdbqueue/transfer/records.py",
        (("    if position.index > MAX_INDEX or", "    if"),),
        tests=(
            "tests/transfer/test_export.py::test_a_record_that_no_queue_can_have_is_named_before_any_key_is_touched",
        ),
    ),
    Mutant(
        "an import takes any high-water mark",
        "fdbqueue/transfer/records.py",
        (("    if not 0 <= header.last_index <= MAX_INDEX:", "    if False:"),),
        tests=(
            "tests/transfer/test_export.py::test_a_record_that_no_queue_can_have_is_named_before_any_key_is_touched",
        ),
    ),
    Mutant(
        "an import takes any mark",
        "fdbqueue/transfer/records.py",
        (("if mark not in REMEDY]", "if not mark]"),),
        tests=(
            "tests/transfer/test_export.py::test_a_record_that_no_queue_can_have_is_named_before_any_key_is_touched",
        ),
    ),
    Mutant(
        "an import reads a line to its end",
        "fdbqueue/transfer/files.py",
        (("file.readline(MAX_LINE_BYTES + 1)", "file.readline()"),),
        tests=("tests/transfer/test_export.py::test_a_line_without_an_end_is_not_read_to_its_end",),
    ),
    Mutant(
        "an import decodes a shared value for each row",
        "fdbqueue/transfer/parquet.py",
        (
            (
                "pq.ParquetFile(path, thrift_container_size_limit=MAX_GROUPS, **options)",
                "pq.ParquetFile(path, thrift_container_size_limit=MAX_GROUPS)",
            ),
        ),
        tests=("tests/transfer/test_export.py::test_a_value_that_many_rows_share_is_in_memory_once",),
    ),
    Mutant(
        "an import decodes columns of any size",
        "fdbqueue/transfer/parquet.py",
        (("            _check_sizes(file.metadata, raw)\n", ""),),
        tests=("tests/transfer/test_export.py::test_a_column_that_is_larger_than_any_of_an_export_is_not_decoded",),
    ),
    Mutant(
        "the removal of a schedule reads its record",
        "layers/schedules/schedules.py",
        (("            await self._present(tr, name)  #", "            await self._stored(tr, name)  #"),),
        tests=(
            "tests/layers/together/test_damaged_records.py::test_a_damaged_schedule_names_its_key_and_can_be_removed",
        ),
    ),
    Mutant(
        "a damaged schedule of another program stops all ticks",
        "layers/schedules/schedules.py",
        (("partial(self._records, names={plan.name for plan in plans})", "self._records"),),
        tests=(
            "tests/layers/together/test_damaged_records.py::test_a_damaged_schedule_of_another_program_stops_no_tick",
        ),
    ),
    Mutant(
        "unsubscribe reads the registration",
        "layers/subscriptions/_subscriptions.py",
        (("registered = await self._stored(tr, name)  #", "registered = await self._registered(tr, name)  #"),),
        tests=("tests/layers/together/test_damaged_records.py::test_a_damaged_subscription_is_unsubscribed",),
    ),
    Mutant(
        "the value of an own record raises what its decoder raises",
        "fdbqueue/stored/layout.py",
        (("except (FormatError, *UNREADABLE, *NOT_A_TUPLE)", "except FormatError"),),
        tests=("tests/layers/together/test_damaged_records.py::test_a_damaged_slot_of_a_session_is_named",),
    ),
    Mutant(
        "a check does not read the codec of states",
        "layers/sessions/reading/check.py",
        (
            (
                "    if stored.present():\n        read_codec_name(",
                "    if not stored.present():\n        read_codec_name(",
            ),
        ),
        tests=("tests/layers/together/test_damaged_records.py::test_a_damaged_codec_of_states_is_named",),
    ),
    Mutant(
        "a cancel needs the record of its group",
        "layers/groups/group.py",
        (("        except FormatError:  # this", "        except ZeroDivisionError:  # this"),),
        tests=("tests/layers/together/test_damaged_records.py::test_a_damaged_group_is_named_and_can_be_cancelled",),
    ),
    Mutant(
        "a foreign key among the items is read as an item",
        "fdbqueue/observe/figures.py",
        (("                place.position(row.key)  # first", "                pass  # first"),),
        tests=("tests/observe/test_troubles.py::test_a_foreign_key_among_the_items_is_no_newer_format",),
    ),
    Mutant(
        "a list reads the records of queues again",
        "fdbqueue/verbs/queues.py",
        (("if self.record is None else self.record\n", "\n"),),
        tests=("tests/observe/test_one_reader.py::test_each_view_of_many_queues_reads_a_queue_once",),
    ),
    Mutant(
        "a list does not tell that totals can't be read",
        "fdbqueue/reads/queue_rows.py",
        (("                self.uncounted = self.uncounted or error\n", "                del error\n"),),
        tests=("tests/observe/test_one_reader.py::test_a_list_with_troubles_has_the_figures_of_the_plain_list",),
    ),
    Mutant(
        "a list with troubles leaves out the figures of a user's layer",
        "fdbqueue/observe/troubles.py",
        (("        await one.rows.add(adding(tr, one.rows.layout, but=SESSIONS))\n", "        pass\n"),),
        tests=("tests/observe/test_one_reader.py::test_a_layer_of_ones_own_is_in_both_lists",),
    ),
    Mutant(
        "an item with notes enters uncounted",
        "fdbqueue/writes/appending.py",
        (('        own.tally("enqueued", amount)\n', ""),),
        tests=("tests/queue/test_one_way_in.py::test_each_item_that_enters_is_noted_by_a_new_rule",),
    ),
    Mutant(
        "a copy writes into a queue that became smart meanwhile",
        "fdbqueue/transfer/copying.py",
        (("self._order, composed=True, registers=False)", 'self._order, composed=True, entry="any")'),),
        tests=("tests/transfer/test_copy.py::test_a_copy_writes_nothing_into_a_queue_that_became_smart_meanwhile",),
    ),
    Mutant(
        "a copy gives items back, and tells no subscription",
        "fdbqueue/transfer/copying.py",
        (("            await moves.ask()\n", ""),),
        tests=("tests/transfer/test_copy.py::test_a_subscription_sees_the_items_that_a_copy_gives_back",),
    ),
    Mutant(
        "an enqueue behind the last index leaves the queue",
        "fdbqueue/moves/admission.py",
        (
            (
                "            raise _not_given(at, layout, key)\n",
                "            index = at\n",
            ),
        ),
        tests=("tests/queue/test_foreign_positions.py::test_no_item_is_enqueued_behind_the_last_position",),
    ),
    Mutant(
        "a leased item at the last index raises the high-water mark",
        "fdbqueue/moves/moves.py",
        (("    if index <= MAX_INDEX:\n", "    if index < 1 << 64:\n"),),
        tests=("tests/queue/test_foreign_positions.py::test_a_far_item_that_is_leased_raises_no_mark",),
    ),
    Mutant(
        "the columns of positions trust the first key",
        "fdbqueue/arrow/columns.py",
        (("    if not is_packed(first):\n", "    if not first:\n"),),
        tests=("tests/queue/test_foreign_positions.py::test_columns_name_a_key_that_has_no_position_for_them",),
    ),
    Mutant(
        "an ack does not say which item is damaged",
        "layers/leases/holding.py",
        (
            (
                "raise self._layout.unreadable_item(packed, error) from error\n            if notes.token ==",
                "raise error\n            if notes.token ==",
            ),
        ),
        tests=("tests/queue/test_foreign_positions.py::test_a_lease_whose_item_was_damaged_is_named",),
    ),
    Mutant(
        "a name of any length is read from a key",
        "fdbqueue/stored/shapes.py",
        (("and 0 < len(value.encode()) <= most", ""),),
        tests=(
            "tests/layers/together/test_foreign_keys_anywhere.py::test_a_key_with_a_name_of_another_length_is_foreign",
        ),
    ),
    Mutant(
        "the records of an operation log are read without a look at their keys",
        "layers/oplog/_records.py",
        (("if (parts := _KEY.parts(row.key[prefix:])) is not None:", "if parts := space.unpack(row.key):"),),
        tests=("tests/layers/oplog/test_oplog.py::test_foreign_keys_among_the_records_are_passed_by",),
    ),
    Mutant(
        "a sweep reads foreign keys as members",
        "layers/groups/group.py",
        (('for _, row in layout.own_rows("groups", found)]', "for row in found]"),),
        tests=("tests/layers/together/test_foreign_keys_anywhere.py::test_foreign_members_stop_no_cancel_of_a_group",),
    ),
    Mutant(
        "a row that was changed on the disk is read as it is",
        "fdbqueue/engine/embedded/store/disk/rows.py",
        (
            ("    if crc32(key + stored) != WHOLE:\n", "    if False:\n"),
            ('        if crc32(BETWEEN.join(map(b"".join, block))) == WHOLE:\n', "        if True:\n"),
        ),
        tests=("tests/unit/test_store_checksums.py::test_each_read_of_a_changed_row_names_it",),
    ),
    Mutant(
        "a commit takes the state before for one that this process saw",
        "fdbqueue/engine/embedded/store/commit/committer.py",
        (("no_long.until == txn_id - 1 and not no_long.written", "not no_long.written"),),
        tests=("tests/unit/test_store_no_long_keys.py::test_a_long_key_of_another_process_is_read_after_own_commits",),
    ),
    Mutant(
        "a commit of a long key is taken for one of short keys",
        "fdbqueue/engine/embedded/store/commit/committer.py",
        (("no_long.until == txn_id - 1 and not no_long.written", "no_long.until == txn_id - 1"),),
        tests=("tests/unit/test_store_no_long_keys.py::test_an_own_long_key_is_read",),
    ),
    Mutant(
        "a counter that was changed on the disk is added to",
        "fdbqueue/engine/embedded/store/commit/request.py",
        (
            ("                if crc32(key + old) != WHOLE:\n", "                if False:\n"),
            ("if crc32(key + old) != WHOLE:  # as in `apply`", "if False:"),
        ),
        tests=("tests/unit/test_store_checksums.py::test_each_read_of_a_changed_row_names_it",),
    ),
    Mutant(
        "the check of a file compares no checksums",
        "fdbqueue/engine/embedded/store/disk/data_file.py",
        (("crc32(key + stored) != rows.WHOLE", "False"),),
        tests=("tests/unit/test_store_checksums.py::test_the_check_of_a_file_names_a_changed_row",),
    ),
    Mutant(
        "a folder of an earlier version gets rows with checksums",
        "fdbqueue/engine/embedded/store/disk/files.py",
        (("checked=(found or new_format(self.path)) == layout.FORMAT", "checked=not folder.made(self.path)"),),
        tests=("tests/unit/test_store_checksums.py::test_a_folder_without_checksums_stays_so",),
    ),
    Mutant(
        "an item whose time to live is over is taken",
        "fdbqueue/moves/taking.py",
        (("return 0 < notes.ttl_at_us <= now_us", "return False"),),
        tests=(
            "tests/queue/test_dequeue_over.py::test_items_whose_life_is_over_are_removed_and_the_next_one_is_taken",
        ),
    ),
    Mutant(
        "a member of a cancelled group is taken",
        "fdbqueue/moves/taking.py",
        (("elif notes.group and await self._is_cancelled(notes.group, found):", "elif False:"),),
        tests=("tests/queue/test_dequeue_over.py::test_members_of_a_cancelled_group_are_removed",),
    ),
    Mutant(
        "no predicate is asked about an item that is opened",
        "fdbqueue/moves/taking.py",
        (('fate = "expired" if predicate(item.value, now_us, item.position) else "take"', "pass"),),
        tests=("tests/queue/test_dequeue_over.py::test_messages_that_their_type_calls_over_are_removed",),
    ),
    Mutant(
        "a plain message is dequeued without a question",
        "fdbqueue/moves/taking.py",
        (
            (
                "None) is not None:\n            return False\n        for row",
                "None) is not None:\n            pass\n        for row",
            ),
        ),
        tests=("tests/queue/test_dequeue_over.py::test_messages_that_their_type_calls_over_are_removed",),
    ),
    Mutant(
        "no predicate is asked about an item that is not opened",
        "fdbqueue/moves/taking.py",
        (('fate = "expired" if await self._says_over(row, notes) else "take"', "await self._says_over(row, notes)"),),
        tests=(
            "tests/layers/together/test_taking.py::test_a_stream_does_not_claim_messages_that_their_type_calls_over",
        ),
    ),
    Mutant(
        "a transaction takes any number of bytes",
        "fdbqueue/moves/taking.py",
        (("if self.taken and self.size_bytes + size > self._most:", "if False:"),),
        tests=("tests/layers/leases/test_leases.py::test_large_items_are_leased_a_few_at_a_time",),
    ),
    Mutant(
        "a dequeue takes an item with a blob",
        "fdbqueue/moves/taking.py",
        (("if dequeues and not is_plain:", "if False:"),),
        tests=("tests/layers/blobs/test_blobs_composed.py::test_no_kind_of_dequeue_removes_a_blob_unread",),
    ),
    Mutant(
        "a dequeue of many items that are over finds nothing",
        "fdbqueue/verbs/queue.py",
        (("        if not items and takes.over >= takes.EXPIRED_LIMIT:\n            return None\n", ""),),
        tests=("tests/queue/test_dequeue_over.py::test_a_dequeue_removes_many_in_several_transactions",),
    ),
    Mutant(
        "a dequeue in front of items that are over ends there",
        "fdbqueue/verbs/queue.py",
        (("if takes.taken == limit or len(found) < wanted or", "if True or"),),
        tests=("tests/queue/test_dequeue_over.py::test_a_dequeue_of_many_goes_on_behind_items_that_are_over",),
    ),
    Mutant(
        "a new item that is over is delivered",
        "layers/subscriptions/waiters.py",
        (("if await self._is_out(tr, new, now_us):", "if False:"),),
        tests=(
            "tests/layers/together/test_taking.py::test_a_new_item_that_is_over_is_not_delivered_to_a_waiting_call",
        ),
    ),
    Mutant(
        "a relaxed lease gives up if it picked only items that are over",
        "layers/leases/taking.py",
        (("served.again or takes.over > 0  #", "served.again  #"),),
        tests=(
            "tests/layers/together/test_taking.py::test_a_relaxed_lease_that_picks_an_item_that_is_over_picks_again",
        ),
    ),
    Mutant(
        "a holder does not hear that the predicate of its item fails",
        "layers/staged/delivery.py",
        (("                    Takes.check_taken(self._queue, opened, notes, self._clock_us)\n", ""),),
        tests=(
            "tests/layers/together/test_taking.py::test_a_granted_item_whose_predicate_fails_goes_back_to_its_place",
        ),
    ),
    Mutant(
        "an assigned item ends no group",
        "layers/staged/delivery.py",
        (
            (
                "            await moves.settle()\n        moves.finish()\n        return True",
                "            pass\n        moves.finish()\n        return True",
            ),
        ),
        tests=("tests/layers/together/test_taking.py::test_assigned_members_of_a_group_end_it",),
    ),
    Mutant(
        "a copy of a cancelled group's member is fetched",
        "layers/smart/_resend.py",
        (('if verdict.fate != "take":', 'if verdict.fate == "expired":'),),
        tests=("tests/layers/together/test_taking.py::test_copies_of_a_cancelled_groups_members_are_not_fetched",),
    ),
    Mutant(
        "items enter sessions without a look at the terms of the queue",
        "fdbqueue/moves/admission.py",
        (
            (
                '        await check_terms(tr, layout, terms_of(layout, bytes(kind)), "session")\n',
                "        terms_of(layout, bytes(kind))\n",
            ),
        ),
        tests=("tests/queue/test_quotas.py::test_sessions_that_know_the_queue_refuse_a_quota_at_once",),
    ),
    Mutant(
        "a later enqueue of a transaction asks for no terms",
        "fdbqueue/writes/appending.py",
        (("    elif following.terms is not NO_TERMS:\n", "    elif not following:\n"),),
        tests=("tests/queue/test_quotas.py::test_a_transaction_that_has_filled_a_queue_is_refused_the_next_item",),
    ),
    Mutant(
        "what the messages of a call will see conflicts with changes behind what decides",
        "layers/smart/admitting.py",
        (("        await locate(tr.snapshot, ", "        await locate(tr, "),),
        Kind.smart,
        tests=(
            "tests/layers/smart/test_smart_interleavings.py::test_changes_behind_the_deciding_item_do_not_conflict",
        ),
    ),
    Mutant(
        "calls of one transaction take the same indices",
        "fdbqueue/writes/appending.py",
        (("max(following.index, taken.index)", "following.index"),),
        tests=(
            "tests/queue/test_appending.py::test_calls_of_one_transaction_that_ask_at_the_same_time_take_different_indices",
        ),
    ),
    Mutant(
        "who asks to enter has registered the queue",
        "fdbqueue/writes/appending.py",
        (("composed=True, asks=True)", "composed=True)"),),
        tests=(
            "tests/queue/test_appending.py::test_who_asks_to_enter_has_written_nothing_yet",
            "tests/layers/smart/test_smart_bypasses.py::test_a_first_smart_enqueue_that_is_refused_has_written_nothing",
        ),
    ),
    Mutant(
        "an error about an item of a session does not name it",
        "layers/sessions/session/session.py",
        (("        return self.layout.read_item(packed, stored, notes_of)\n", "        return notes_of(stored)\n"),),
        tests=("tests/layers/sessions/test_sessions_damaged.py::test_an_error_names_the_item_in_progress",),
    ),
    Mutant(
        "an error about a pointer of a session does not name it",
        "layers/sessions/line/line.py",
        (
            (
                "        return self.layout.read_item(packed, stored, pointer_of)\n",
                "        return pointer_of(stored)\n",
            ),
        ),
        tests=("tests/layers/sessions/test_sessions_damaged.py::test_an_error_names_the_pointer_and_the_line",),
    ),
    Mutant(
        "an expired lease that can not be ended stops all others",
        "layers/sessions/line/line.py",
        (
            (
                "        except FormatError as error:\n            if not error.newer:",
                "        except KeyError as error:\n            if not error.newer:",
            ),
        ),
        tests=(
            "tests/layers/sessions/test_sessions_damaged.py::test_an_expired_lease_that_can_not_end_keeps_no_other",
        ),
    ),
    Mutant(
        "slots are read only when a lease of a slot has begun to end",
        "layers/sessions/line/line.py",
        (
            (
                "        if turn.record.limit:\n            await self.slots.entries",
                "        if False:\n            await self.slots.entries",
            ),
        ),
        tests=(
            "tests/layers/sessions/test_sessions_damaged.py::test_an_expired_lease_that_can_not_end_keeps_no_other",
        ),
    ),
    Mutant(
        "an expired lease of an item that can not be read does not block its session",
        "layers/sessions/line/line.py",
        (("        except FormatError as unreadable:", "        except KeyError as unreadable:"),),
        tests=(
            "tests/layers/sessions/test_sessions_damaged.py::test_an_expired_unreadable_item_blocks_its_session_only",
        ),
    ),
    Mutant(
        "a lost lease of an item that can not be read is no lost lease",
        "fdbqueue/verbs/editing.py",
        (
            (
                "errors[one.packed] = notes_if_readable(one.stored).error",
                "errors[one.packed] = notes_of(one.stored).error",
            ),
        ),
        tests=("tests/layers/sessions/test_sessions_damaged.py::test_a_lost_lease_of_an_unreadable_item_is_lost",),
    ),
    Mutant(
        "a counter of any name is the library's own",
        "fdbqueue/stored/shapes.py",
        (("_text(value) and value in COUNTERS", "_text(value)"),),
        tests=("tests/queue/test_checking.py::test_a_counter_that_no_queue_has_is_foreign_and_removed",),
    ),
    Mutant(
        "a counter that no queue has is written",
        "fdbqueue/stored/counters.py",
        (("    if not changes.keys() <= COUNTERS:", "    if False:"),),
        tests=("tests/queue/test_checking.py::test_a_counter_of_another_name_is_refused",),
    ),
    Mutant(
        "a page that can not be read tells no other trouble",
        "fdbqueue/cli/opening.py",
        (("lambda one: said not in one.text", "lambda one: False"),),
        tests=("tests/cli/test_checking.py::test_a_damaged_counter_is_named_with_its_remedy_beside_other_troubles",),
    ),
    Mutant(
        "a name that begins with a dash is an option of a command",
        "fdbqueue/stored/names.py",
        (
            (
                'shlex.quote(_dumped([text]) if text.startswith("-") else text)',
                "shlex.quote(text)",
            ),
            (
                'shlex.quote(_dumped({"text": text}) if text.startswith("-") else text)',
                "shlex.quote(text)",
            ),
        ),
        tests=(
            "tests/unit/test_names.py::test_a_name_that_begins_with_a_dash_is_no_option_of_a_command",
            "tests/cli/test_remedies.py::test_the_commands_of_troubles_take_a_name_that_begins_with_a_dash",
        ),
    ),
    Mutant(
        "answers have a queue's name as it was typed",
        "fdbqueue/cli/options.py",
        (("queue_text(Layout(named(text)).prefix) if text else text", "text"),),
        tests=("tests/cli/test_remedies.py::test_answers_show_the_one_text_of_a_queue",),
    ),
    Mutant(
        "a backup of a damaged folder does not say what to do",
        "fdbqueue/engine/embedded/store/backup.py",
        (
            ("        if -done.returncode in _BY_DAMAGE:", "        if False:"),
            ("could not be written. {explain(path, error)}", "could not be written ({error})."),
        ),
        tests=("tests/cli/test_check_file.py::test_a_backup_of_a_damaged_folder_names_the_check_of_the_file",),
    ),
    Mutant(
        "a folder whose format can not be read has no checksums",
        "fdbqueue/engine/embedded/store/disk/data_file.py",
        (("self.checked: bool | None = None", "self.checked: bool | None = False"),),
        tests=("tests/cli/test_check_file.py::test_it_is_unknown_whether_rows_of_a_damaged_table_have_checksums",),
    ),
    Mutant(
        "a limit of more than 32 bits reaches the client",
        "layers/sessions/operators/operators.py",
        (("    return min(limit, _MOST_ROWS)", "    return limit"),),
        tests=("tests/layers/sessions/test_sessions_operators.py::test_a_limit_of_more_than_32_bits_is_all",),
    ),
    Mutant(
        "an empty text names no dead letters",
        "layers/leases/browsing.py",
        (
            (
                "    alone = isinstance(position, Position | str | bytes | Mapping)",
                "    alone = isinstance(position, Position)",
            ),
        ),
        tests=("tests/layers/together/test_wrong_arguments.py::test_a_wrong_argument_is_refused",),
    ),
    Mutant(
        "a follow-up that has a time is refused when its item is written already",
        "layers/results/results.py",
        (("        check_follow_ups(follow_ups)\n", ""),),
        tests=("tests/layers/together/test_wrong_arguments.py::test_a_wrong_argument_is_refused",),
    ),
    Mutant(
        "an own error of a body is taken for a body that is none",
        "fdbqueue/engine/steps.py",
        (('    if not hasattr(steps, "send"):', "    if True:"),),
        tests=("tests/unit/test_steps.py::test_an_error_of_a_body_stays_that_error",),
    ),
    Mutant(
        "a damaged pointer stops all sessions",
        "fdbqueue/moves/taking.py",
        (("        if value is None or any(", "        if True or any("),),
        tests=("tests/layers/sessions/test_sessions_mending.py::test_others_go_on_and_resume_mends_it",),
    ),
    Mutant(
        "a pointer of a newer version is put aside",
        "fdbqueue/moves/taking.py",
        (
            (
                'getattr(one, "newer", False) for one in (error, error.__cause__)',
                "False for one in (error, error.__cause__)",
            ),
        ),
        tests=("tests/layers/sessions/test_sessions_mending.py::test_what_a_newer_version_wrote_is_left_alone",),
    ),
    Mutant(
        "a lease raises for a damaged record",
        "layers/sessions/session/session.py",
        (("            if error.newer:\n                raise\n            return None", "            raise"),),
        tests=("tests/layers/sessions/test_sessions_mending.py::test_others_go_on_and_resume_mends_it",),
    ),
    Mutant(
        "a record of a newer version is taken for a damaged one",
        "layers/sessions/session/session.py",
        (("            if error.newer:\n                raise\n            return None", "            return None"),),
        tests=("tests/layers/sessions/test_sessions_mending.py::test_what_a_newer_version_wrote_is_left_alone",),
    ),
    Mutant(
        "resume does not look whether a session is whole",
        "layers/sessions/operators/changes.py",
        (
            (
                "            if record is not None and await is_whole(",
                "            if record is not None or await is_whole(",
            ),
        ),
        tests=("tests/layers/sessions/test_sessions_mending.py::test_a_lost_pointer_is_told_and_entered_again",),
    ),
    Mutant(
        "a whole session is written again",
        "layers/sessions/line/mending.py",
        (
            (
                "    if keys or record.paused or record.blocked:\n        return True",
                "    if record.paused or record.blocked:\n        return True",
            ),
        ),
        tests=("tests/layers/sessions/test_sessions_mending.py::test_a_whole_session_is_not_written_again",),
    ),
    Mutant(
        "a session that is mended loses its live leases",
        "layers/sessions/line/mending.py",
        (('            if one.state == "leased" or (', "            if ("),),
        tests=("tests/layers/sessions/test_sessions_mending.py::test_a_mended_session_goes_on_where_it_is_leased",),
    ),
    Mutant(
        "a session that is mended keeps the slots of its gates",
        "layers/sessions/line/mending.py",
        (("    for entry in lost.values():", "    for entry in ():"),),
        tests=("tests/layers/sessions/test_sessions_mending.py::test_others_go_on_and_resume_mends_it",),
    ),
    Mutant(
        "gates are forgotten when a session is mended",
        "layers/sessions/line/mending.py",
        (("    if known is None and line.rules.gates is None and", "    if False and"),),
        tests=("tests/layers/sessions/test_sessions_mending.py::test_gates_of_a_damaged_record_must_be_known",),
    ),
    Mutant(
        "a damaged record stops its gate",
        "layers/sessions/line/gates.py",
        (("                continue  # `Sessions.resume`", "                raise  # `Sessions.resume`"),),
        tests=("tests/layers/sessions/test_sessions_mending.py::test_a_damaged_record_does_not_stop_its_gate",),
    ),
    Mutant(
        "an expired lease of a damaged session is not put aside",
        "layers/sessions/line/line.py",
        (
            (
                "            if not error.newer:\n                self._put_aside",
                "            if False:\n                self._put_aside",
            ),
        ),
        tests=("tests/layers/sessions/test_sessions_mending.py::test_a_lease_that_expires_does_not_stop_others",),
    ),
    Mutant(
        "check removes a damaged pointer that a session owns",
        "layers/sessions/line/mending.py",
        (("        elif one.packed not in places:", "        else:"),),
        tests=("tests/layers/sessions/test_sessions_mending.py::test_a_damaged_pointer_that_a_session_owns_stays",),
    ),
    Mutant(
        "check removes the damaged record of a session with items",
        "layers/sessions/line/mending.py",
        (
            (
                "            if not error.newer and not await rows(tr, *within(keys.items + packed), limit=1):",
                "            if not error.newer:",
            ),
        ),
        tests=("tests/layers/sessions/test_sessions_mending.py::test_what_belongs_to_nothing_is_removed_as_foreign",),
    ),
    Mutant(
        "on_bad buries a pointer of a newer version",
        "layers/consumer/_turns.py",
        (
            (
                "        return False  # all",
                "        return await self.holds.leases.dead.bury.aio(self.db, error.position, error='x')  # all",
            ),
        ),
        tests=("tests/layers/sessions/test_sessions_mending.py::test_what_a_newer_version_wrote_is_left_alone",),
    ),
)
