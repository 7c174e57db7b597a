/* The protocol of the shared-memory backend, for the model checker spin: rounds,
 * units, the doorbell, and two threads a rank of which either may carry the
 * rank's operations forward. docs/design/shm.md says what it is meant to do;
 * rounds.cc, doorbell.cc and shm_backend.cc in lockstep/comm/shm do it.
 *
 * What is checked, in every interleaving:
 *   - no wake-up is lost: nobody sleeps for ever (an invalid end state). The
 *     50 ms after which a real sleeper looks around are left out, and so is the
 *     second thread's own clock: it may stop for good at any moment.
 *   - whoever reads a slot finds what belongs to the round it is in.
 *   - every unit of a round's work is done exactly once, and before anybody
 *     goes on.
 *
 * All shared variables are sequentially consistent atomics there, so that an
 * interleaving of single steps is all that can happen. Plain memory (what a slot
 * holds) is written and read in steps of its own.
 *
 * Each of BREAK_LAST_LOOK, BREAK_SLEEPERS, BREAK_WANTED and BREAK_SLOTS takes
 * away one thing that the protocol cannot do without; the checker must then find
 * an error.
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
/* The futex: instead of a counter, whether it still stands at what the thread
 * heard, which is all that futex_wait asks. */
bool unchanged[RANKS], asleep[RANKS]

/* Each rank's own: which thread carries out, and how far it is. */
bool engine[RANKS], wanted[RANKS]
byte completed[RANKS] /* operations, of one round each */
bool begun[RANKS]     /* the round after those: this rank has arrived in it */
byte seen[RANKS]      /* ranks below this were seen to have arrived */

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

/* Rounds::claim, in `unit`; UNITS when there is none left. A loop of
 * compare-and-exchange comes to one step. */
inline claim() {
  d_step {
    unit = (claim_round == round -> claim_count : 0)
    if
    :: unit < UNITS -> claim_round = round; claim_count = unit + 1
    :: else
    fi
  }
}

/* Rounds::finish */
inline finish() {
  d_step {
    finish_count = (finish_round == round -> finish_count : 0) + 1
    finish_round = round
    assert(finish_count <= UNITS)
  }
  ring()
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

/* ShmBackend::advance_queue: as far as it goes without waiting. Whoever calls it
 * holds the engine. */
inline advance() {
  do
  :: completed[me] == ROUNDS -> break
  :: else ->
     round = completed[me] + 1
     if
     :: !begun[me] ->
        brought[SLOT(me, round)] = round
        begun[me] = true
        seen[me] = 0
        flag[SLOT(me, round)] = round
        ring()
     :: else
     fi
     do
     :: seen[me] < RANKS && flag[SLOT(seen[me], round)] >= round -> seen[me]++
     :: else -> break
     od
     if
     :: seen[me] < RANKS -> break
     :: else
     fi
     read_slots()
     do
     :: claim()
        if
        :: unit == UNITS -> break
        :: else -> read_slots(); finish()
        fi
     od
     if
     :: finish_round == round && finish_count == UNITS
     :: else -> break
     fi
     begun[me] = false
     completed[me]++
     ring()
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
     :: wanted[me] -> wanted[me] = false; ring()
     :: else
     fi
     mine = false
  :: else
  fi
}

/* Waits for each operation in turn: Doorbell::wait with settled_after_try. */
proctype user(byte me) {
  byte round, unit, other, sleeper, ticket
  bool mine
  ticket = 1
  do
  :: ticket > ROUNDS -> break
  :: else ->
     do
     :: completed[me] >= ticket -> break
     :: else ->
        try_advance()
        if
        :: completed[me] >= ticket -> break
        :: else
        fi
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
           !asleep[me]
        fi
        sleepers--
        unchanged[me] = false
     od
     ticket++
  od
}

/* The rank's own thread, which may look whenever it likes, or never. */
proctype tender(byte me) {
  byte round, unit, other, sleeper
  bool mine
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
