/* The protocol of the shared-memory backend, for the model checker spin: rounds,
 * units, the doorbell, and two threads a rank of which either may carry the
 * rank's operations forward. docs/design/shm.md says what it is meant to do;
 * rounds.cc, doorbell.cc and shm_backend.cc in src/comm/shm do it.
 *
 * What is checked, in every interleaving:
 *   - no wake-up is lost: nobody sleeps for ever (an invalid end state). The
 *     50 ms after which a real sleeper looks around are left out, and so is the
 *     second thread's own clock: it may stop for good at any moment.
 *   - whoever reads a slot finds what belongs to the round it is in.
 *   - every unit of a round's work is done exactly once, and before anybody
 *     goes on; where each rank has a part of its own, every rank has done it.
 *   - with GIVES_UP, rank 0 may give up at any moment, free its memory and
 *     leave. The other ranks are threads of its process: none of them reduces
 *     in that memory afterwards.
 *   - with GIVES_UP and STRANGERS, they are other processes, for which rank 0
 *     does not wait: an operation for which a rank read that memory afterwards
 *     is complete on no rank.
 *
 * All shared variables are sequentially consistent atomics there, so that an
 * interleaving of single steps is all that can happen. Plain memory (what a slot
 * holds) is written and read in steps of its own.
 *
 * Each of BREAK_LAST_LOOK, BREAK_LAST_ARRIVAL, BREAK_SLEEPERS, BREAK_WANTED, BREAK_SLOTS,
 * BREAK_OWN_PART, BREAK_PARTS, BREAK_LATER_ROUND and BREAK_DISCARD takes away
 * one thing that the protocol cannot do without; the checker must then find an
 * error.
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef ROUNDS
#define ROUNDS 3
#endif
#ifndef TENDERS
#define TENDERS 1 /* ranks that have a second thread */
#endif
#ifndef UNITS
#define UNITS 2
#endif

#ifndef OWN_FROM
#define OWN_FROM 255 /* from this round on each rank has a part of its own */
#endif
#ifdef GIVES_UP
#define MAY_GIVE_UP(r) (r == 0)
#else
#define MAY_GIVE_UP(r) false
#endif
#define ENDED 128 /* added to a count of units */
#define COUNT(round) ((round) >= OWN_FROM -> RANKS : UNITS)

#ifdef BREAK_SLOTS
#define SLOT(r, round) (r)
#else
#define SLOT(r, round) (2 * (r) + (round) % 2)
#endif

/* The control block. */
byte flag[2 * RANKS]
byte brought[2 * RANKS] /* what the slot holds: the round it is meant for */
byte claim_round, claim_count
byte finish_round, finish_count
byte sleepers
byte own_sleepers[RANKS] /* those of a rank's own threads */
byte at_work[RANKS] /* a rank's `part`: the round that it is at work in, or 0 */
bool left           /* a departure note */
bool freed[RANKS]   /* whose memory has another use by now */
bool spoilt[ROUNDS + 2] /* rounds in which such memory was read */
/* The futex: instead of a counter, whether it still stands at what the thread
 * heard, which is all that futex_wait asks. */
bool unchanged[RANKS], asleep[RANKS]

/* Each rank's own: which thread carries out, and how far it is. */
bool engine[RANKS], wanted[RANKS]
byte completed[RANKS] /* operations, of one round each */
bool begun[RANKS]     /* the round after those: this rank has arrived in it */
byte seen[RANKS]      /* ranks below this were seen to have arrived */
bool tried[RANKS]     /* DirectTransfer::own_part_done_ */
byte own_parts[RANKS] /* of the present round that were done */

inline change_bell() {
  d_step {
    sleeper = 0
    do
    :: sleeper < RANKS -> unchanged[sleeper] = false; sleeper++
    :: else -> break
    od
    sleeper = 0
  }
}

inline wake_all() {
  d_step {
    sleeper = 0
    do
    :: sleeper < RANKS -> asleep[sleeper] = false; sleeper++
    :: else -> break
    od
    sleeper = 0
  }
}

/* Doorbell::ring */
inline ring() {
#ifdef BREAK_SLEEPERS
  skip
#else
  if
  :: sleepers == 0
  :: else ->
     change_bell()
     wake_all()
  fi
#endif
}

/* Doorbell::ring_for_own */
inline ring_for_own() {
  if
  :: own_sleepers[me] == 0
  :: else -> ring()
  fi
}

/* Rounds::all_arrived */
inline look_who_arrived() {
  do
  :: seen[me] < RANKS && flag[SLOT(seen[me], round)] >= round -> seen[me]++
  :: else -> break
  od
}

/* Rounds::claim, in `unit`; COUNT or more when there is none left. A loop of
 * compare-and-exchange comes to one step. */
inline claim() {
  d_step {
    unit = (claim_round == round -> claim_count : 0)
#ifndef BREAK_LATER_ROUND
    if
    :: claim_round > round -> unit = ENDED
    :: else
    fi
#endif
    if
    :: unit < COUNT(round) -> claim_round = round; claim_count = unit + 1
    :: else
    fi
  }
}

/* Rounds::finish */
inline finish() {
  d_step {
    finish_count = (finish_round == round -> finish_count : 0) + 1
    finish_round = round
    assert(finish_count % ENDED <= COUNT(round))
    is_last = finish_count >= COUNT(round)
  }
  if
  :: is_last -> ring()
  :: else
  fi
}

inline read_slots() {
  other = 0
  do
  :: other < RANKS ->
     assert(brought[SLOT(other, round)] == round)
     other++
  :: else -> break
  od
  other = 0
}

/* Reads and writes everybody's memory. */
inline reduce() {
  read_slots()
  d_step {
    other = 0
    do
#ifdef STRANGERS
    :: other < RANKS -> spoilt[round] = spoilt[round] || freed[other]; other++
#else
    :: other < RANKS -> assert(!freed[other]); other++
#endif
    :: else -> break
    od
    other = 0
  }
}

/* DirectTransfer::reduce_units, as often as it is called */
inline reduce_units() {
  at_work[me] = round /* begin_part */
  do
  :: claim()
     if
     :: unit >= COUNT(round) -> break
     :: else -> reduce(); finish()
     fi
  od
  at_work[me] = 0 /* end_part */
}

/* DirectTransfer::do_own_part, once a round */
inline do_own_part() {
  if
#ifndef BREAK_OWN_PART
  :: tried[me]
#endif
  :: else ->
     at_work[me] = round
     claim()
     if
     :: unit < COUNT(round) -> reduce(); own_parts[me]++; finish()
     :: else
     fi
     at_work[me] = 0
     tried[me] = true
  fi
}

/* ShmBackend::advance_queue: as far as it goes without waiting. Whoever calls it
 * holds the engine. */
inline advance() {
  do
  :: completed[me] == ROUNDS || freed[me] /* broken_ */ -> break
  :: else ->
     round = completed[me] + 1
     if
     :: !begun[me] ->
        brought[SLOT(me, round)] = round
        begun[me] = true
        seen[me] = 0
        flag[SLOT(me, round)] = round
        look_who_arrived()
#ifndef BREAK_LAST_ARRIVAL
        if
        :: seen[me] == RANKS -> ring()
        :: else
        fi
#endif
     :: else -> look_who_arrived()
     fi
     if
     :: seen[me] < RANKS -> break
     :: else
     fi
     read_slots()
     if
     :: round >= OWN_FROM -> do_own_part()
     :: else -> reduce_units()
     fi
     if
     :: finish_round == round && finish_count == COUNT(round)
     :: else -> break
     fi
     d_step {
       assert(round < OWN_FROM || own_parts[me] == 1)
       assert(!spoilt[round])
       own_parts[me] = 0
       tried[me] = false
       begun[me] = false
     }
     completed[me]++
     ring_for_own()
  od
  round = 0
  unit = 0
}

/* One step: engine_.try_lock(), in `mine`. */
inline try_lock() {
  d_step {
    mine = !engine[me]
    engine[me] = true
  }
}

/* ShmBackend::try_advance */
inline try_advance() {
  try_lock()
  if
  :: !mine ->
#ifndef BREAK_WANTED
     wanted[me] = true
     try_lock()
#endif
  :: else
  fi
  if
  :: mine ->
     advance()
     engine[me] = false
     if
     :: wanted[me] -> wanted[me] = false; ring_for_own()
     :: else
     fi
     mine = false
  :: else
  fi
}

/* ShmBackend::give_up, with the engine: the memory first, then the news. */
inline give_up() {
  atomic { !engine[me]; engine[me] = true }
  d_step { /* Rounds::end_work; `unit` has how many were taken */
    round = completed[me] + (begun[me] -> 1 : 0)
    unit = (claim_round == round -> claim_count : 0)
    if
    :: claim_round > round -> unit = 0
    :: else -> claim_round = round; claim_count = unit + ENDED
    fi
  }
  if
  :: unit == 0
  :: else ->
#if !defined(BREAK_PARTS) && !defined(STRANGERS)
     other = 0
     do
     :: other < RANKS -> at_work[other] != round || round == 0; other++
     :: else -> break
     od
     other = 0
#endif
     d_step { /* Rounds::discard_unless_finished */
       if
#ifndef BREAK_DISCARD
       :: !(finish_round == round && finish_count == unit) ->
          finish_count = (finish_round == round -> finish_count : 0) + ENDED
          finish_round = round
#endif
       :: else
       fi
     }
  fi
  unit = 0
  freed[me] = true
  left = true
  engine[me] = false
  ring()
}

/* Waits for each operation in turn: Doorbell::wait with settled_after_try. */
proctype user(byte me) {
  byte round, unit, other, sleeper, ticket
  bool mine, is_last
  ticket = 1
  do
  :: ticket > ROUNDS || left -> break
  :: else ->
     do
     :: completed[me] >= ticket || left -> break
#ifdef GIVES_UP
     :: me == 0 && completed[me] < ticket -> give_up(); goto done
#endif
     :: completed[me] < ticket && !left ->
        try_advance()
        if
        :: completed[me] >= ticket -> break
        :: else
        fi
        own_sleepers[me]++
        sleepers++
        unchanged[me] = true /* heard = bell */
#ifndef BREAK_LAST_LOOK
        if
        :: completed[me] < ticket -> try_advance()
        :: else
        fi
#endif
        if
#ifndef BREAK_LAST_LOOK
        :: completed[me] >= ticket
        :: else ->
#else
        :: true ->
#endif
           /* futex_wait */
           d_step { asleep[me] = unchanged[me] }
           (!asleep[me] || left || MAY_GIVE_UP(me)) /* a time-out */
        fi
        sleepers--
        own_sleepers[me]--
        unchanged[me] = false
     od
     ticket++
  od
done:
  skip
}

/* The rank's own thread, which may look whenever it likes, or never. */
proctype tender(byte me) {
  byte round, unit, other, sleeper
  bool mine, is_last
  do
  :: try_advance()
  :: break
  od
}

init {
  byte r
  atomic {
    do
    :: r < RANKS ->
       run user(r)
       if
       :: r < TENDERS -> run tender(r)
       :: else
       fi
       r++
    :: else -> break
    od
  }
}
