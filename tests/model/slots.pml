/* The slot protocol (docs/internals/protocol.md) of one switch and HOSTS hosts, for spin: all orders are tried.

   The network keeps every packet that was ever sent, and delivers any of them at any time, as often as it likes: that is
   loss, duplication and reordering without bounds. A host may stop at any moment, as no host ever has to go on. A switch
   may restart (once for each further epoch): its memory is lost, and the hosts begin again under the next epoch, while
   the packets of the last one stay in the network.

   What a sum is worth is left out; a slot version only knows whether it has added what it should not have. So the
   property is: a result that a host takes has every host's contribution to that position once, and nothing else.

   tests/check.sh runs it, and with each of these, of which it must find what goes wrong:
   -DONE_BIT: the published scheme, in which one version bit stands for the sequence.
   -DNO_EPOCH: the switch doesn't look at the epoch.
   -DENDS: nothing is wrong, but it is an error if all hosts have all results. So something is shown at all.
   -DBARE: a host may leave out the lanes of a contribution, and may need none of a result (lanes.md). Which it
   does is drawn for each position, as it sends for the first time. Then a result also has lanes if, and only if, someone
   has added some, and whoever needs them is never sent the header alone. With this one, too, something is wrong:
   -DLANES_STAY: a contribution without lanes, the first of its sequence, leaves those of the sequence before.
   -DWISHES_STAY: who needs no lanes is remembered beyond the sequence. */

#ifndef HOSTS
#define HOSTS 2
#endif
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef POSITIONS
#define POSITIONS 5
#endif
#ifndef EPOCHS
#define EPOCHS 1
#endif

#define ALL ((1 << HOSTS) - 1)
#define VERSION(p) ((p) % (2 * SLOTS)) /* a slot and one of its two versions: protocol.md, "Positions, slots" */
#define PACKET(e, h, p) (((e) * HOSTS + (h)) * POSITIONS + (p))
#define RESULT(e, p) ((e) * POSITIONS + (p))

#ifdef NO_EPOCH
#define TAKES(e) true
#else
#define TAKES(e) ((e) == epoch)
#endif

/* The network: which contributions and results were ever sent; of a result, also whether a wrong one was. */
bit contribution[EPOCHS * HOSTS * POSITIONS];
bit right[EPOCHS * POSITIONS];
bit wrong[EPOCHS * POSITIONS];
#ifdef BARE
bit is_bare[EPOCHS * HOSTS * POSITIONS]; /* of contributions: without lanes */
bit needless[EPOCHS * HOSTS * POSITIONS]; /* and the host needs none of the result */
byte header[EPOCHS * POSITIONS]; /* the hosts that were sent the header alone */
#define ADDS_LANES(e, h, p) (!is_bare[PACKET(e, h, p)])
#define NEEDS(e, h, p) (!needless[PACKET(e, h, p)])
#else
#define ADDS_LANES(e, h, p) true
#define NEEDS(e, h, p) true
#endif

/* The hosts. `low` is the first position without a result, `has` which of those from it on have theirs. */
byte low[HOSTS];
byte has[HOSTS];

/* The switch. */
byte epoch;
bit filled[2 * SLOTS];
byte sequence[2 * SLOTS];
byte bitmap[2 * SLOTS];
bit spoilt[2 * SLOTS]; /* something of another position or epoch was added, or something twice */
#ifdef BARE
bit has_lanes[2 * SLOTS];
byte no_result[2 * SLOTS];
#endif

inline send_result(v) {
#ifdef BARE
  header[RESULT(epoch, sequence[v])] = header[RESULT(epoch, sequence[v])] | no_result[v];
  for (g : 0 .. HOSTS - 1) {
    if :: ADDS_LANES(epoch, g, sequence[v]) -> break :: else fi
  }
  if :: has_lanes[v] != (g < HOSTS) -> spoilt[v] = 1 :: else fi;
  g = 0;
#endif
  if
  :: spoilt[v] -> wrong[RESULT(epoch, sequence[v])] = 1
  :: else -> right[RESULT(epoch, sequence[v])] = 1
  fi
}

/* The lanes of a contribution, the first of its sequence or another one. */
inline begin_lanes(e, h, p, v) {
#ifdef BARE
#ifdef LANES_STAY
  if :: has_lanes[v] && !ADDS_LANES(e, h, p) -> spoilt[v] = 1 :: else -> has_lanes[v] = ADDS_LANES(e, h, p) fi;
#else
  has_lanes[v] = ADDS_LANES(e, h, p);
#endif
#ifdef WISHES_STAY
  no_result[v] = no_result[v] | (NEEDS(e, h, p) -> 0 : 1 << h);
#else
  no_result[v] = (NEEDS(e, h, p) -> 0 : 1 << h);
#endif
#endif
  skip
}
inline add_lanes(e, h, p, v) {
#ifdef BARE
  has_lanes[v] = has_lanes[v] | ADDS_LANES(e, h, p);
  no_result[v] = no_result[v] | (NEEDS(e, h, p) -> 0 : 1 << h);
#endif
  skip
}

/* A contribution (e, h, p) reaches the switch. */
inline at_switch(e, h, p) {
  v = VERSION(p);
#ifdef ONE_BIT
  /* Sapio et al., SwitchML (NSDI 2021), algorithm 3: a bit for each worker and version; to be counted in one version
     clears the worker's bit in the other. The slot counts, and the first of a round overwrites. */
  if
  :: !(bitmap[v] & (1 << h)) ->
     bitmap[v] = bitmap[v] | (1 << h);
     other = (v + SLOTS) % (2 * SLOTS);
     bitmap[other] = bitmap[other] & (ALL - (1 << h));
     count[v] = (count[v] + 1) % HOSTS;
     if
     :: count[v] == 1 % HOSTS -> sequence[v] = p; spoilt[v] = 0
     :: else -> if :: sequence[v] != p -> spoilt[v] = 1 :: else fi
     fi;
     if :: count[v] == 0 -> send_result(v) :: else fi
  :: else -> if :: count[v] == 0 -> send_result(v) :: else fi
  fi;
  other = 0;
#else
  if
#ifndef NO_EPOCH
  :: e != epoch
#endif
  :: TAKES(e) && (!filled[v] || sequence[v] < p) ->
     filled[v] = 1; sequence[v] = p; bitmap[v] = 1 << h; spoilt[v] = (e != epoch);
     begin_lanes(e, h, p, v);
     if :: bitmap[v] == ALL -> send_result(v) :: else fi
  :: TAKES(e) && filled[v] && sequence[v] > p /* stale */
  :: TAKES(e) && filled[v] && sequence[v] == p ->
     if
     :: bitmap[v] & (1 << h) -> if :: bitmap[v] == ALL -> send_result(v) :: else fi
     :: else ->
        bitmap[v] = bitmap[v] | (1 << h);
        if :: e != epoch -> spoilt[v] = 1 :: else fi;
        add_lanes(e, h, p, v);
        if :: bitmap[v] == ALL -> send_result(v) :: else fi
     fi
  fi;
#endif
  v = 0
}

#ifdef ONE_BIT
byte count[2 * SLOTS];
byte other;
/* A host can't tell the results of two positions of one slot version apart. */
#define MEANS(p, q) (VERSION(p) == VERSION(q))
#else
#define MEANS(p, q) ((p) == (q))
#endif

/* The host takes a result for its position q; it was sent for p. */
inline at_host(h, q) {
  has[h] = has[h] | (1 << (q - low[h]));
  do
  :: has[h] & 1 -> has[h] = has[h] >> 1; low[h]++
  :: else -> break
  od
}

active proctype cluster() {
  byte e, h, p, q, v;
#ifdef BARE
  byte g;
#endif
  do
  :: atomic { /* a host sends, or sends again */
       select(h : 0 .. HOSTS - 1); select(q : 0 .. SLOTS - 1);
       p = low[h] + q;
       if
       :: p < POSITIONS && !contribution[PACKET(epoch, h, p)] ->
          contribution[PACKET(epoch, h, p)] = 1;
#ifdef BARE
          if :: is_bare[PACKET(epoch, h, p)] = 1 :: skip fi;
          if :: needless[PACKET(epoch, h, p)] = 1 :: skip fi
#endif
       :: else
       fi;
       h = 0; p = 0; q = 0
     }
  :: atomic { /* the network delivers a contribution */
       select(e : 0 .. EPOCHS - 1); select(h : 0 .. HOSTS - 1); select(p : 0 .. POSITIONS - 1);
       if
       :: contribution[PACKET(e, h, p)] -> at_switch(e, h, p)
       :: else
       fi;
       e = 0; h = 0; p = 0
     }
  :: atomic { /* the network delivers a result; hosts look at the epoch, and at what they wait for */
       select(h : 0 .. HOSTS - 1); select(p : 0 .. POSITIONS - 1); select(q : 0 .. SLOTS - 1);
       q = low[h] + q;
       if
       :: q < POSITIONS && MEANS(p, q) && contribution[PACKET(epoch, h, q)] && !(has[h] & (1 << (q - low[h]))) ->
          if
#ifdef BARE
          :: header[RESULT(epoch, p)] & (1 << h) -> assert(p == q && !NEEDS(epoch, h, q)); at_host(h, q)
#endif
          :: right[RESULT(epoch, p)] -> assert(p == q); at_host(h, q)
          :: wrong[RESULT(epoch, p)] -> assert(false)
          :: else
          fi
       :: else
       fi;
       h = 0; p = 0; q = 0
     }
#ifdef ENDS
  :: atomic {
       for (h : 0 .. HOSTS - 1) {
         if :: low[h] < POSITIONS -> break :: else fi
       }
       assert(h < HOSTS);
       h = 0
     }
#endif
#if EPOCHS > 1
  :: atomic { /* the switch restarts, and the hosts with it */
       epoch < EPOCHS - 1 ->
       epoch++;
       for (v : 0 .. 2 * SLOTS - 1) { filled[v] = 0; sequence[v] = 0; bitmap[v] = 0; spoilt[v] = 0 }
       for (h : 0 .. HOSTS - 1) { low[h] = 0; has[h] = 0 }
       v = 0; h = 0
     }
#endif
  od
}
