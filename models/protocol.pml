/* Two nodes of one worker each: an owner that lends a block, and lends another, and a reader that
 * pulls. Leases, claims, pulls and blocks are numbered 0 and 1; lease l is of block l. Of a
 * stream the second half of the block is written later, or never.
 *
 * What states do at an event is in tables.pml, printed from kvdist/connector/tables. Here is what
 * effects do, what the halves look at before they hand an event to a table, and the world: control
 * messages get lost, doubled, late and out of order; the data link is cut, and each side hears of
 * it by itself; reads go on after they were stopped; timers may go off at any time; the owner
 * restarts once. Faults and repeats are finite in number, so that every run has to end.
 */
#include "tables.pml"

#ifndef CLAIMS
#define CLAIMS 1 /* requests of the reader, one after the other */
#endif
#ifndef LEASES
#define LEASES 1
#endif
#ifndef PULLS
#define PULLS 1
#endif
#ifndef TRIES
#define TRIES 1 /* an answer is asked for so often */
#endif
#ifndef DOUBLES
#define DOUBLES 0 /* so many messages come twice */
#endif
#ifndef CUTS
#define CUTS 0 /* so often the link is cut from outside */
#endif
#ifndef RESTARTS
#define RESTARTS 0
#endif
#define ROUNDS 2 /* pulls of one claim */

/* Sets of small numbers. */
#define has(set, i) (set & (1 << (i)))
#define put(set, i) set = set | (1 << (i))
#define drop(set, i) set = set & ~(1 << (i))

/* Where things stand; 0: not begun. */
byte lease[2], grant[2], serve[2]; /* the owner's */
byte claim[2], pull[2], part[2];   /* the reader's; a pull, its part and its serve have one number */
byte claim_lease[2], pull_lease[2];
byte sending[2]; /* 1: the owner's worker sends, 2: it has read half of the block, 3: all of it */
#define is_promised(l) (lease[l] != 0 && lease[l] != LEASE_GONE)
#define is_asked(l, n) (is_promised(l) && lease_claim[l] == n)
#define is_granted(l) (grant[l] != 0 && grant[l] != GRANT_GONE)
#define is_serving(p) (serve[p] != 0 && serve[p] != SERVE_OVER)
#define serves(p, l) (is_serving(p) && pull_lease[p] == l)
#define is_read(p, l) ((is_serving(p) || sending[p]) && pull_lease[p] == l)
#define is_open(p) (serve[p] == SERVE_OPEN || serve[p] == SERVE_SENDING)
#define is_claimed(n) (claim[n] != 0 && claim[n] != CLAIM_GONE)
#define has_ticket(n) (is_claimed(n) && claim[n] != CLAIM_ASKING)
#define is_wanted(n, l) (claim_lease[n] == l && (claim[n] == CLAIM_HELD || claim[n] == CLAIM_PULLING))
#define is_pulling(p) (pull[p] == PULL_PULLING || pull[p] == PULL_FAILING)
#define is_fetching(p) (part[p] != 0 && part[p] != PART_GOOD && part[p] != PART_OVER)

inline more_tries(tries) {
  if
  :: tries < TRIES -> tries++
  :: else
  fi
}

/* kvdist/connector/rules.py, as far as one reader and one worker need it. */
#define is_same_run(named, ours) ((named) == (ours))
#define may_take_over(holder_is_open) (!(holder_is_open))
#define may_confirm(is_open) (is_open)
#define may_return(unacknowledged) (!(unacknowledged))
#define may_issue(unacknowledged) (!(unacknowledged))

mtype = { GRANT, GRANTED, REVOKE, REVOKED };              /* owner's node and worker */
mtype = { FETCH, CANCEL, ENDED_GOOD, ENDED_BAD, QUIET };  /* reader's node and worker */
mtype = { OPEN, OPENED, DENIED, CONFIRM, CONFIRMED, CLOSE, BYTES, TORN_BYTES }; /* workers */

byte doubles = DOUBLES, cuts = CUTS, restarts = RESTARTS;
bool sends;       /* the owner sends; else the reader reads by itself */
bool takes_back;  /* the owner may want its blocks back */

/* -- control messages under way, by what they name ------------------------------------------- */

byte borrow, lent, nothing;                /* of claims; lent: of claim n and lease l, 2n + l */
byte release, released, withdrawn;         /* of leases */

/* It arrives, and maybe once more later. */
inline receive(set, i) {
  if
  :: drop(set, i)
  :: doubles > 0 -> doubles--
  fi
}

/* -- the data link: in order, until it is cut ------------------------------------------------ */

chan up = [8] of { mtype, byte };    /* to the owner, of pull p */
chan down = [8] of { mtype, byte };
bool is_cut;          /* and the reader hasn't heard; then it dials again */
byte stale, unheard;  /* serves whose link was cut; and the owner hasn't heard */

#define is_next(way, kind, p) (way?[kind, eval(p)])
inline arrive(way, kind, p) {
  if
  :: way?kind, eval(p)
  :: doubles > 0 -> doubles--
  fi
}
inline say(way, kind, p) {
  if
  :: is_cut -> skip
  :: else -> way!kind, p
  fi
}
inline flush(way) {
  do
  :: len(way) > 0 -> way?_, _
  :: len(way) == 0 -> break
  od
}
inline cut() {
  if
  :: is_cut -> skip
  :: else ->
    is_cut = true;
    flush(up);
    flush(down);
    if :: is_serving(0) && !has(stale, 0) -> put(stale, 0); put(unheard, 0) :: else fi;
    if :: is_serving(1) && !has(stale, 1) -> put(stale, 1); put(unheard, 1) :: else fi
  fi
}

/* -- owner's node: Lender -------------------------------------------------------------------- */

byte lease_claim[2];  /* who asked for it */
byte lease_run[2];
byte ungranted, unrevoked, clock;
byte owner_run;
byte returned;        /* blocks that went back, or were lost with their run */
byte unwritten;       /* streams: the second half of the block will be written later, or never */
byte reused;          /* blocks that have other content than what was leased */
chan to_server = [4] of { mtype, byte };
chan to_lender = [4] of { mtype, byte };

inline begin_lease(l, n) {
  lease[l] = LEASE_GRANTING;
  lease_claim[l] = n;
  lease_run[l] = owner_run;
  put(ungranted, l);
#ifdef STREAMS
  if
  :: put(unwritten, l)
  :: skip
  fi;
#endif
  to_server!GRANT, l
}
inline ask_again(l) {
  if
  :: lease[l] == LEASE_ACTIVE -> do_lease_issue_ticket(l)
  :: else
  fi
}
inline do_lease_issue_ticket(l) { put(lent, 2 * lease_claim[l] + l) }
inline do_lease_refuse_ticket(l) { put(nothing, lease_claim[l]) }
inline do_lease_restart_clock(l) { put(clock, l) }
inline do_lease_send_revoke(l) {
  drop(clock, l);
  put(unrevoked, l);
  to_server!REVOKE, l
}
inline do_lease_send_withdrawn(l) { put(withdrawn, l) }
inline do_lease_return_blocks(l) {
  assert(!has(returned, l)); /* returned once */
  put(returned, l)
}

/* A question by hash. */
proctype Question(byte n) {
end:
  do
  :: atomic {
      has(borrow, n) -> receive(borrow, n);
      if
      :: is_asked(0, n) -> ask_again(0)
      :: !is_asked(0, n) && is_asked(1, n) -> ask_again(1)
      :: !is_asked(0, n) && !is_asked(1, n) -> put(nothing, n)
      :: !is_asked(0, n) && !is_asked(1, n) && lease[0] == 0 -> begin_lease(0, n)
      :: !is_asked(0, n) && !is_asked(1, n) && LEASES == 2 && lease[0] != 0 && lease[1] == 0 -> begin_lease(1, n)
      fi
    }
  od
}

proctype Lease(byte l) {
end:
  do
  :: d_step {
      to_lender?GRANTED, eval(l) ->
      if
      :: has(ungranted, l) ->
        drop(ungranted, l);
        if :: may_issue(has(ungranted, l)) -> lease_granted(l) :: else fi
      :: else
      fi
    }
  :: d_step {
      to_lender?REVOKED, eval(l) ->
      drop(unrevoked, l);
      if :: may_return(has(unrevoked, l)) -> lease_revoked(l) :: else fi
    }
  :: atomic {
      has(release, l) -> receive(release, l);
      d_step {
        if
        :: is_promised(l) && is_same_run(lease_run[l], owner_run) && lease[l] != LEASE_GRANTING ->
          lease_released(l)
        :: else
        fi;
        put(released, l)
      }
    }
#ifdef RENEWALS
  :: d_step { is_promised(l) && (is_wanted(0, l) || is_wanted(1, l)) -> lease_renewed(l) }
#endif
  :: d_step { has(clock, l) -> drop(clock, l); lease_expired(l) }
  :: d_step {
      takes_back && (lease[l] == LEASE_GRANTING || lease[l] == LEASE_ACTIVE) ->
      lease_taken_back(l)
    }
  :: d_step { /* written, and its worker and whoever reads know */
      has(unwritten, l) && (lease[l] == LEASE_GRANTING || lease[l] == LEASE_ACTIVE) ->
      drop(unwritten, l)
    }
  :: d_step {
      /* The block is taken for other content: nobody may serve it, or be sending it. */
      has(returned, l) && !has(reused, l) ->
      assert(!is_granted(l) && !is_read(0, l) && !is_read(1, l));
      put(reused, l)
    }
  od
}

/* -- owner's worker: Server ------------------------------------------------------------------ */

byte good, bad;       /* verdicts that are kept */
byte serve_timer;
byte half_sent, sent_torn;
hidden byte asker;    /* the pull that wants to be opened */

inline do_grant_serve(l) {
  serve[asker] = SERVE_OPEN;
  put(serve_timer, asker);
  say(down, OPENED, asker);
  if
  :: sends -> serve_more(asker); sending[asker] = 1
  :: else
  fi
}
inline do_grant_deny(l) { say(down, DENIED, asker) }
inline do_grant_acknowledge(l) { to_lender!REVOKED, l }

inline do_serve_keep_verdict(p) {
  assert(!has(reused, pull_lease[p])); /* what is said to be good is what was leased */
  put(good, p)
}
inline do_serve_say_gone(p) {
  if
  :: has(stale, p) -> skip
  :: else -> say(down, DENIED, p)
  fi
}
inline do_serve_stop_sending(p) { skip } /* the send returns all the same */
inline do_serve_cut_link(p) {
  if
  :: has(stale, p) -> skip
  :: else -> cut()
  fi
}
inline do_serve_free(p) {
  drop(serve_timer, p);
  drop(unheard, p);
  drop(half_sent, p);
  if :: !has(good, p) -> put(bad, p) :: else fi;
  if
  :: serves(1 - p, pull_lease[p]) -> skip
  :: else -> grant_last_closed(pull_lease[p])
  fi
}

proctype Grant(byte l) {
end:
  do
  :: d_step { to_server?GRANT, eval(l) -> grant[l] = GRANT_ACTIVE; to_lender!GRANTED, l }
  :: d_step {
      to_server?REVOKE, eval(l) ->
      if
      :: serves(0, l) || serves(1, l) -> grant_revoke_busy(l)
      :: else -> grant_revoke_idle(l)
      fi;
      if :: serves(0, l) && has(unwritten, l) -> serve_revoked(0) :: else fi;
      if :: serves(1, l) && has(unwritten, l) -> serve_revoked(1) :: else fi
    }
  od
}

inline on_open(p) {
  if
  :: is_serving(p) && has(stale, p) -> say(down, DENIED, p)
  :: is_serving(p) && !has(stale, p) && is_open(p) -> say(down, OPENED, p)
  :: is_serving(p) && !has(stale, p) && !is_open(p) -> skip
  :: !is_serving(p) ->
    if
    :: !has(good, p) && !has(bad, p) && is_granted(pull_lease[p]) &&
       is_same_run(lease_run[pull_lease[p]], owner_run) &&
       may_take_over(serves(1 - p, pull_lease[p])) ->
      asker = p;
      grant_open(pull_lease[p])
    :: else -> say(down, DENIED, p)
    fi
  fi
}
inline on_confirm(p) {
  if
  :: has(good, p) -> say(down, CONFIRMED, p)
  :: has(bad, p) -> say(down, DENIED, p)
  :: !has(good, p) && !has(bad, p) && may_confirm(is_open(p)) ->
    if :: is_serving(p) -> serve_confirm(p) :: else fi;
    say(down, CONFIRMED, p)
  :: else -> say(down, DENIED, p)
  fi
}

proctype Serve(byte p) {
end:
  do
  :: atomic { is_next(up, OPEN, p) -> arrive(up, OPEN, p); d_step { on_open(p) } }
  :: atomic { is_next(up, CONFIRM, p) -> arrive(up, CONFIRM, p); d_step { on_confirm(p) } }
  :: atomic {
      is_next(up, CLOSE, p) -> arrive(up, CLOSE, p);
      d_step { if :: is_serving(p) -> serve_close(p) :: else fi }
    }
  :: d_step { has(unheard, p) -> drop(unheard, p); serve_link_lost(p) }
  :: d_step {
      has(serve_timer, p) && !has(stale, p) ->
      assert(!is_open(p) || is_fetching(p) || len(up) > 0 || is_cut); /* somebody reads it */
      serve_stalled(p)
    }
  :: d_step { /* half of the block is read, and that may be all there is as yet */
      sending[p] == 1 ->
      if :: has(reused, pull_lease[p]) -> put(sent_torn, p) :: else fi;
      if
      :: has(unwritten, pull_lease[p]) -> sending[p] = 0; put(half_sent, p); serve_sent(p)
      :: else -> sending[p] = 2
      fi
    }
  :: d_step {
      has(half_sent, p) && !has(unwritten, pull_lease[p]) && serve[p] == SERVE_OPEN ->
      drop(half_sent, p);
      serve_more(p);
      sending[p] = 2
    }
  :: d_step { /* and the other */
      sending[p] == 2 -> sending[p] = 3;
      if
      :: has(stale, p) -> skip
      :: !has(stale, p) && (has(sent_torn, p) || has(reused, pull_lease[p])) ->
        say(down, TORN_BYTES, p)
      :: else -> say(down, BYTES, p)
      fi
    }
  :: d_step { /* it has returned, perhaps before its end */
      sending[p] == 3 || (sending[p] && (has(stale, p) || serve[p] == SERVE_ENDING)) ->
      sending[p] = 0;
      serve_sent(p)
    }
  od
}

/* -- reader's node: Borrower ----------------------------------------------------------------- */

byte claim_tries[2];
byte claim_failures[2];
byte ask_timer, wanted;

byte pull_claim[2];
byte ended;           /* pulls whose verdict has come */
chan to_fetcher = [4] of { mtype, byte };
chan to_borrower = [4] of { mtype, byte };

/* The destination of a pull. */
#define FILLING 1
#define QUARANTINE 2
#define PUBLISHED 3
#define FREED 4
byte target[2];
byte whole, torn;     /* what has landed there */

inline do_claim_ask(n) {
  more_tries(claim_tries[n]);
  put(ask_timer, n);
  put(borrow, n)
}
inline do_claim_send_release(n) {
  more_tries(claim_tries[n]);
  put(ask_timer, n);
  put(release, claim_lease[n])
}
inline do_claim_forget(n) {
  drop(ask_timer, n);
  drop(wanted, n);
  claim_tries[n] = 0;
  claim_failures[n] = 0
}
inline leave(n) {
  drop(wanted, n);
  if
  :: claim[n] == CLAIM_ASKING || claim[n] == CLAIM_HELD -> claim_unwanted(n)
  :: else
  fi
}
inline begin_pull(p, n) {
  pull[p] = PULL_PULLING;
  pull_claim[p] = n;
  pull_lease[p] = claim_lease[n];
  target[p] = FILLING;
  claim_pull(n);
  to_fetcher!FETCH, p
}
inline on_ticket(n, l) {
  if
  :: claim[n] == CLAIM_ASKING ->
    drop(ask_timer, n);
    claim_tries[n] = 0;
    claim_lease[n] = l;
    claim_ticket(n)
  :: has_ticket(n) && claim_lease[n] == l -> skip
  :: else -> put(release, l) /* what nobody wants goes back at once */
  fi
}

inline do_pull_say_loaded(p) {
  assert(target[p] == FILLING);
  assert(has(whole, p) && !has(torn, p)); /* only verified content is published */
  target[p] = PUBLISHED
}
inline do_pull_say_failed(p) {
  assert(target[p] == FILLING);
  target[p] = QUARANTINE;
  claim_failures[pull_claim[p]]++
}
inline do_pull_cancel_parts(p) {
  if :: !has(ended, p) -> to_fetcher!CANCEL, p :: else fi
}
inline do_pull_say_quiet(p) {
  assert(target[p] == QUARANTINE);
  target[p] = FREED
}
inline do_pull_end_claim(p) {
  claim_pull_over(pull_claim[p]);
  if
  :: pull[p] == PULL_LOADED || !has(wanted, pull_claim[p]) -> leave(pull_claim[p])
  :: else
  fi
}

proctype Claim(byte n) {
end:
  do
  :: d_step { /* one request after the other */
      claim[n] == 0 && (n == 0 || claim[0] == CLAIM_GONE) ->
      claim[n] = CLAIM_ASKING;
      put(wanted, n);
      do_claim_ask(n)
    }
  :: atomic { has(lent, 2 * n) -> receive(lent, 2 * n); d_step { on_ticket(n, 0) } }
  :: atomic { has(lent, 2 * n + 1) -> receive(lent, 2 * n + 1); d_step { on_ticket(n, 1) } }
  :: d_step { has(nothing, n) && claim[n] == CLAIM_ASKING -> drop(nothing, n); claim_nothing(n) }
  :: d_step {
      has_ticket(n) && has(withdrawn, claim_lease[n]) ->
      drop(withdrawn, claim_lease[n]);
      claim_lost(n)
    }
  :: d_step { /* another run of the owner is seen */
      has_ticket(n) && !is_same_run(lease_run[claim_lease[n]], owner_run) && claim[n] != CLAIM_ORPHANED ->
      claim_lost(n)
    }
  :: d_step {
      claim[n] == CLAIM_RELEASING && has(released, claim_lease[n]) ->
      drop(released, claim_lease[n]);
      claim_released(n)
    }
  :: d_step {
      has(ask_timer, n) -> drop(ask_timer, n);
      if
      :: claim_tries[n] < TRIES -> claim_unanswered(n)
      :: else -> claim_gave_up(n)
      fi
    }
  :: d_step {
      claim[n] == CLAIM_HELD && claim_failures[n] < ROUNDS && pull[PULLS - 1] == 0 ->
      if
      :: pull[0] == 0 -> begin_pull(0, n)
      :: else -> begin_pull(1, n)
      fi
    }
  :: d_step { /* the request goes another way, or is aborted */
      has(wanted, n) ->
      leave(n);
      if :: pull_claim[0] == n && is_pulling(0) -> pull_unwanted(0) :: else fi;
      if :: pull_claim[1] == n && is_pulling(1) -> pull_unwanted(1) :: else fi
    }
  od
}

proctype Pull(byte p) {
end:
  do
  :: d_step {
      to_borrower?ENDED_GOOD, eval(p) ->
      if
      :: is_pulling(p) && !has(ended, p) ->
        put(ended, p);
        if :: pull[p] == PULL_PULLING -> pull_all_good(p) :: else fi
      :: else
      fi
    }
  :: d_step {
      to_borrower?ENDED_BAD, eval(p) ->
      if
      :: is_pulling(p) && !has(ended, p) -> put(ended, p); pull_part_failed(p)
      :: else
      fi
    }
  :: d_step {
      to_borrower?QUIET, eval(p) ->
      if
      :: pull[p] == PULL_FAILING && has(ended, p) -> pull_all_quiet(p)
      :: else
      fi
    }
  od
}

/* -- reader's worker: Fetcher ---------------------------------------------------------------- */

byte part_tries[2];
byte answer_timer, stall_timer, rest_timer;
byte reading[2];      /* 1: bytes may land, 2: half of them have */
byte stopped;         /* reads that are to stop */
byte placed;          /* what the owner sends lands once */

inline do_part_send_open(p) {
  more_tries(part_tries[p]);
  put(answer_timer, p);
  say(up, OPEN, p)
}
inline do_part_begin_read(p) {
  drop(answer_timer, p);
  part_tries[p] = 0;
  put(stall_timer, p);
  if :: !sends -> reading[p] = 1 :: else fi
}
inline do_part_send_confirm(p) {
  drop(stall_timer, p);
  more_tries(part_tries[p]);
  put(answer_timer, p);
  say(up, CONFIRM, p)
}
inline do_part_send_close(p) { say(up, CLOSE, p) }
inline do_part_stop_read(p) {
  drop(stall_timer, p);
  put(stopped, p);
  put(rest_timer, p)
}
inline do_part_cut_link(p) { cut() }
inline do_part_escalate(p) { cut() }
inline do_part_report_good(p) { to_borrower!ENDED_GOOD, p }
inline do_part_report_failed(p) { to_borrower!ENDED_BAD, p }
inline do_part_report_quiet(p) {
  drop(answer_timer, p);
  drop(stall_timer, p);
  drop(rest_timer, p);
  part_tries[p] = 0;
  to_borrower!QUIET, p
}

inline place(p, is_torn) {
  if
  :: part[p] == PART_LANDING && !has(placed, p) ->
    put(placed, p);
    reading[p] = 1;
    if :: is_torn -> put(torn, p) :: else fi
  :: else
  fi
}
inline write(p) {
  assert(target[p] == FILLING || target[p] == QUARANTINE); /* not published, not reused */
  if :: !sends && has(reused, pull_lease[p]) -> put(torn, p) :: else fi
}

proctype Part(byte p) {
end:
  do
  :: d_step { to_fetcher?FETCH, eval(p) -> part[p] = PART_OPENING; do_part_send_open(p) }
  :: d_step {
      to_fetcher?CANCEL, eval(p) ->
      if :: is_fetching(p) -> part_cancelled(p) :: else fi
    }
  :: atomic {
      is_next(down, OPENED, p) -> arrive(down, OPENED, p);
      d_step {
        if
        :: part[p] == PART_OPENING && is_same_run(lease_run[pull_lease[p]], owner_run) -> part_opened(p)
        :: else
        fi
      }
    }
  :: atomic {
      is_next(down, DENIED, p) -> arrive(down, DENIED, p);
      d_step { if :: is_fetching(p) -> part_denied(p) :: else fi }
    }
  :: atomic {
      is_next(down, CONFIRMED, p) -> arrive(down, CONFIRMED, p);
      d_step {
        if
        :: part[p] == PART_CONFIRMING && is_same_run(lease_run[pull_lease[p]], owner_run) ->
          part_confirmed(p)
        :: else
        fi
      }
    }
  :: d_step { down?BYTES, eval(p) -> place(p, false) }
  :: d_step { down?TORN_BYTES, eval(p) -> place(p, true) }
  :: d_step { reading[p] == 1 -> write(p); reading[p] = 2 }
  :: d_step {
      reading[p] == 2 && !has(stopped, p) && !has(unwritten, pull_lease[p]) ->
      write(p);
      reading[p] = 0;
      put(whole, p);
      if :: part[p] == PART_LANDING -> part_landed(p) :: else fi
    }
  :: d_step { reading[p] && part[p] == PART_LANDING -> part_read_failed(p) }
  :: d_step {
      reading[p] == 2 && has(stopped, p) && !has(unwritten, pull_lease[p]) ->
      write(p);
      reading[p] = 3
    }
  :: d_step { has(stopped, p) -> drop(stopped, p); reading[p] = 0; part_quiet(p) }
  :: d_step {
      has(answer_timer, p) -> drop(answer_timer, p);
      if
      :: part_tries[p] < TRIES -> part_unanswered(p)
      :: else -> part_gave_up(p)
      fi
    }
  :: d_step { has(stall_timer, p) -> drop(stall_timer, p); part_stalled(p) }
  :: d_step { has(rest_timer, p) -> drop(rest_timer, p); part_restless(p) }
  od
}

/* -- what goes wrong ------------------------------------------------------------------------- */

inline lose(set) {
  if
  :: has(set, 0) -> drop(set, 0)
  :: has(set, 1) -> drop(set, 1)
  fi
}

proctype Network() {
end:
  do
  :: atomic { borrow -> lose(borrow) }
  :: atomic { nothing -> lose(nothing) }
  :: atomic { release -> lose(release) }
  :: atomic { released -> lose(released) }
  :: atomic { withdrawn -> lose(withdrawn) }
  :: d_step { has(lent, 0) -> drop(lent, 0) }
  :: d_step { has(lent, 1) -> drop(lent, 1) }
  :: d_step { has(lent, 2) -> drop(lent, 2) }
  :: d_step { has(lent, 3) -> drop(lent, 3) }
  :: d_step { cuts > 0 && !is_cut -> cuts--; cut() }
  :: d_step { /* the reader hears of it */
      is_cut -> is_cut = false;
      if :: is_fetching(0) -> part_link_lost(0) :: else fi;
      if :: is_fetching(1) -> part_link_lost(1) :: else fi
    }
  od
}

inline die(i) {
  if :: lease[i] != 0 -> lease[i] = LEASE_GONE; put(returned, i); put(reused, i) :: else fi;
  if :: is_granted(i) -> grant[i] = GRANT_GONE :: else fi;
  if :: is_serving(i) -> serve[i] = SERVE_OVER :: else fi;
  sending[i] = 0
}

proctype Owner() {
end:
  do
  :: d_step { /* another run: leases, grants, verdicts, memory and links are gone */
      restarts > 0 -> restarts--; owner_run++;
      cut();
      flush(to_server);
      flush(to_lender);
      die(0);
      die(1);
      ungranted = 0; unrevoked = 0; clock = 0;
      good = 0; bad = 0; serve_timer = 0; half_sent = 0; sent_torn = 0; stale = 0; unheard = 0
    }
  od
}

/* -- and in the end -------------------------------------------------------------------------- */

/* Nothing can happen any more: then every lease, claim and pull is over, and every block is back. */
proctype End() {
  timeout;
  assert(!is_promised(0) && !is_promised(1));
  assert(!is_granted(0) && !is_granted(1) && !is_serving(0) && !is_serving(1));
  assert(!is_claimed(0) && !is_claimed(1));
  assert(!is_pulling(0) && !is_pulling(1) && !is_fetching(0) && !is_fetching(1));
  assert((lease[0] == 0 || has(returned, 0)) && (lease[1] == 0 || has(returned, 1)));
  assert(target[0] != FILLING && target[0] != QUARANTINE);
  assert(target[1] != FILLING && target[1] != QUARANTINE)
}

init {
  atomic {
    if
    :: sends = false
    :: sends = true
    fi;
    if
    :: takes_back = false
    :: takes_back = true
    fi;
    run Question(0); run Claim(0); run Lease(0); run Grant(0); run Serve(0); run Pull(0); run Part(0);
#if CLAIMS == 2
    run Question(1); run Claim(1);
#endif
#if LEASES == 2
    run Lease(1); run Grant(1);
#endif
#if PULLS == 2
    run Serve(1); run Pull(1); run Part(1);
#endif
    run Network(); run Owner(); run End()
  }
}
