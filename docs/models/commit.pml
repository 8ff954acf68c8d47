/* The commit protocol: two publishers, sites, a decider and somebody who aborts, any of which dies and starts again
 * between any two steps. What the store and the disks hold survives; everything else a process forgets.
 *
 * Shown for all interleavings: a version has one decision and it never changes; a replica records a version only once
 * it is committed and every word of it is in place; a replica that is not whole says so; an apply never lacks its
 * journals; the trainer's baseline advances on a commit only; nobody waits for ever, and where everybody is done, every
 * replica is at the newest committed version. With deaths limited (-DLIMITED=N) there is no endless run either.
 *
 * Sizes: -DSITES -DJOBS -DVERSIONS=1|2 -DPUBLISHERS=1|2. JOBS are jobs at one replica, which take each other for dead.
 * Each of -DNO_PUT_ONCE, -DNO_DECISION, -DEAGER_BASELINE, -DRECORD_FIRST, -DNO_MARK, -DRECEIPT_ONCE and -DNO_FENCE breaks
 * one rule, and must yield an error. tests/model/test_commit_model.py runs all of this.
 */

#define COMMIT 1
#define ABORT 2
#define CONTENT(v, p) (1 + PUBLISHERS * ((v) - 1) + (p)) /* each publisher has other words for a version */

/* -- the store: every object is put once ------------------------------------------------------------------------ */

bool opened[VERSIONS + 1];
byte base[VERSIONS + 1];     /* open.json: the state that the version is made from */
byte manifest[VERSIONS + 1]; /* its content */
byte decision[VERSIONS + 1];
typedef Receipts { bool at[SITES] };
Receipts prepared[VERSIONS + 1];

/* -- disks ------------------------------------------------------------------------------------------------------ */

typedef Record { byte version; byte content };
Record baseline[PUBLISHERS], pending[PUBLISHERS];

typedef Replica {
    byte version, state, applying; /* the record */
    byte word[2];                  /* the weights: two writes */
    byte lease                     /* 0: nobody's, else 1 + job */
};
Replica replica[SITES];

typedef Journals { byte version; byte content; bool whole; bool sealed };
typedef Sets { Journals at[JOBS] }; /* each job writes a set of its own */
Sets sets[SITES];

/* -- what only the proof knows ---------------------------------------------------------------------------------- */

byte first[VERSIONS + 1]; /* the first decision that anybody put */
typedef Alive { bool at[JOBS] };
Alive alive[SITES];

#ifdef LIMITED
byte deaths;
#define MAY_DIE (deaths < LIMITED)
#define DIES deaths++
#else
#define MAY_DIE true
#define DIES skip
#endif

/* A step is one call of the store or of the disk; after it the process may be gone, with all that it knew. */
#define DEATH if :: MAY_DIE -> DIES; FORGET; goto start :: true fi
#define STEP(action) atomic { action; DEATH }

inline put_decision(v, what) {
    if
#ifdef NO_PUT_ONCE
    :: true -> decision[v] = what
#else
    :: decision[v] == 0 -> decision[v] = what
    :: else
#endif
    fi;
    if :: first[v] == 0 -> first[v] = decision[v] :: else fi;
    assert(decision[v] == first[v])
}

inline last_committed(v, out) {
    out = 0;
    if
    :: v > 1 && decision[1] == COMMIT -> out = manifest[1]
    :: else
    fi
}

inline set_baseline(p) {
    baseline[p].version = pending[p].version;
    baseline[p].content = pending[p].content;
    assert(decision[baseline[p].version] == COMMIT && manifest[baseline[p].version] == baseline[p].content)
}

#define FORGET v = 0; from = 0

#ifdef STEADY
/* One publisher that never dies, in a step per version: for models of what happens at a site. */
proctype publisher(byte p) {
    byte v = 1;
    do
    :: v <= VERSIONS -> atomic {
            v == 1 || decision[v - 1] != 0;
            last_committed(v, base[v]); opened[v] = true; manifest[v] = CONTENT(v, p);
            v++
        }
    :: else -> break
    od;
    v = 0
}
#else
proctype publisher(byte p) {
    byte v, from;
start:
    STEP(if :: pending[p].version > 0 && decision[pending[p].version] == COMMIT -> set_baseline(p) :: else fi);
    STEP(if :: decision[pending[p].version] != 0 -> pending[p].version = 0; pending[p].content = 0 :: else fi);
    atomic { /* which version is next, and from which base: read at leisure, it cannot change */
        v = (opened[VERSIONS] -> VERSIONS : (opened[1] -> 1 : 0));
        v = (decision[v] != 0 -> v + 1 : v);
        if
        :: v > VERSIONS -> goto end
        :: v <= VERSIONS -> last_committed(v, from)
        fi
    };
    if
    :: atomic { pending[p].version == v && decision[v] != 0 -> FORGET; goto start } /* sealed by us: wait */
    :: pending[p].version != v
    fi;
    STEP(if :: !opened[v] -> opened[v] = true; base[v] = from :: else fi);
    /* N + 1 is opened only when N is decided, so all find the same base. */
    STEP(assert(base[v] == from); if :: manifest[v] == 0 -> manifest[v] = CONTENT(v, p) :: else fi);
    if
    :: atomic { manifest[v] != CONTENT(v, p) && decision[v] != 0 -> FORGET; goto start } /* sealed by the other: wait */
    :: atomic { manifest[v] == CONTENT(v, p) && decision[v] == ABORT -> FORGET; goto start }
    :: manifest[v] == CONTENT(v, p) && decision[v] != ABORT
    fi;
    STEP(pending[p].version = v; pending[p].content = CONTENT(v, p));
#ifdef EAGER_BASELINE
    STEP(set_baseline(p));
#endif
    atomic { FORGET; goto start };
end:
    atomic { FORGET }
}
#endif

/* All sites have prepared it, or all but the first: dcr commit --without. */
#define READY(v) (manifest[v] != 0 && (SITES == 1 || prepared[v].at[SITES - 1]))

/* Dying between a look and a put, these two start again from the look: that is one of their runs. */
proctype decider() {
    byte v = 1;
    do
    :: v > VERSIONS -> break
    :: v <= VERSIONS ->
        if
        :: decision[v] == 0 && READY(v) && prepared[v].at[0] -> atomic { put_decision(v, COMMIT) }
        :: decision[v] == 0 && READY(v) -> atomic { put_decision(v, COMMIT) }
        :: decision[v] != 0
        fi;
        v++
    od;
    v = 0
}

/* Aborts an opened version at any moment, sealed or not, or none. */
proctype aborter() {
    if
    :: opened[1] && decision[1] == 0 -> atomic { put_decision(1, ABORT) }
    :: opened[VERSIONS] && decision[VERSIONS] == 0 -> atomic { put_decision(VERSIONS, ABORT) }
    :: true
    fi
}

#define SITE replica[s]
#define OWN sets[s].at[j]
#define HELD (SITE.lease == 1 + j)
#ifdef NO_FENCE
#define FENCED(action) STEP(action)
#else
#define FENCED(action) atomic { if :: HELD -> action :: !HELD -> FORGET; goto start fi; DEATH }
#endif
#undef FORGET
#define FORGET v = 0; content = 0; k = 0; alive[s].at[j] = false

#define WHOLE assert(SITE.applying != 0 || (SITE.word[0] == SITE.state && SITE.word[1] == SITE.state))

inline drop(v) {
    k = 0;
    do
    :: k < JOBS ->
        if
        :: sets[s].at[k].version <= v ->
            sets[s].at[k].version = 0; sets[s].at[k].content = 0;
            sets[s].at[k].whole = false; sets[s].at[k].sealed = false
        :: else
        fi;
        k++
    :: else -> k = 0; break
    od
}

/* The content of a sealed set for a version, 0 where there is none. */
inline find_sealed(v, out) {
    k = 0; out = 0;
    do
    :: k < JOBS ->
        if
        :: sets[s].at[k].version == v && sets[s].at[k].sealed -> assert(sets[s].at[k].whole); out = sets[s].at[k].content
        :: else
        fi;
        k++
    :: else -> k = 0; break
    od
}

inline finish_record(v, content) {
    SITE.version = v; SITE.state = content; SITE.applying = 0;
    assert(decision[v] == COMMIT && manifest[v] == content);
    WHOLE
}

/* One job at a site's replica: refit and apply, over and over. */
proctype job(byte s, j) {
    byte v, content, k;
start:
    atomic {
        if
        :: SITE.lease == 0 || HELD
        :: SITE.lease != 0 && !HELD && !alive[s].at[SITE.lease - 1]
        :: SITE.lease != 0 && !HELD && MAY_DIE -> DIES /* alive, but silent for too long: taken for dead */
        fi;
        SITE.lease = 1 + j; alive[s].at[j] = true
    };
look:
    atomic { v = (SITE.applying != 0 -> SITE.applying : SITE.version + 1); content = 0 };
next:
    if
    :: atomic { v > VERSIONS -> goto end }
    :: atomic { v <= VERSIONS && decision[v] == ABORT -> if :: HELD -> drop(v); v++; goto next :: else -> FORGET; goto start fi }
    :: atomic { v <= VERSIONS && manifest[v] != 0 && decision[v] != ABORT -> find_sealed(v, content) }
    :: atomic { !HELD -> FORGET; goto start }
    fi;
    if
    :: atomic { content != 0 -> DEATH }
    :: atomic { content == 0 && (SITE.applying != 0 || base[v] != SITE.state) -> assert(!HELD); FORGET; goto start }
    :: content == 0 && SITE.applying == 0 && base[v] == SITE.state ->
        /* The gate above: a delta never lands on another base, and an apply never lacks its journals. */
        STEP(OWN.version = v; OWN.content = manifest[v]; OWN.whole = false; OWN.sealed = false; content = manifest[v]);
        STEP(if :: OWN.version == v -> OWN.whole = true :: else fi); /* a successor may have removed it */
        FENCED(OWN.sealed = true)
#ifdef RECEIPT_ONCE
        ; STEP(prepared[v].at[s] = true)
#endif
    fi;
#ifndef RECEIPT_ONCE
    STEP(prepared[v].at[s] = true); /* also where an earlier run died between the journals and the receipt */
#endif
#ifndef NO_DECISION
    if
    :: decision[v] == COMMIT
    :: atomic { decision[v] == ABORT -> goto look }
    :: atomic { !HELD -> FORGET; goto start }
    fi;
#endif
#ifndef NO_MARK
    FENCED(SITE.applying = v);
#endif
#ifdef RECORD_FIRST
    FENCED(finish_record(v, content));
#endif
    FENCED(SITE.word[0] = content; WHOLE);
    FENCED(SITE.word[1] = content; WHOLE);
    FENCED(finish_record(v, content));
    FENCED(drop(v));
    goto look;
end:
    atomic { if :: HELD -> SITE.lease = 0 :: else fi; FORGET }
}

/* Nobody can go on: then everybody must be done, and the same everywhere. */
proctype convergence() {
    byte s, newest;
    timeout -> atomic {
        assert(decision[1] != 0 && decision[VERSIONS] != 0);
        newest = (decision[VERSIONS] == COMMIT -> VERSIONS : (decision[1] == COMMIT -> 1 : 0));
        do
        :: s < SITES ->
            assert(SITE.version == newest && SITE.state == manifest[newest] && SITE.applying == 0);
            WHOLE;
            s++
        :: else -> break
        od
    }
}

init {
    byte s, j;
    atomic {
        decision[0] = COMMIT; first[0] = COMMIT;
        do
        :: s < SITES ->
            j = 0;
            do
            :: j < JOBS -> run job(s, j); j++
            :: else -> break
            od;
            s++
        :: else -> break
        od;
        j = 0;
        do
        :: j < PUBLISHERS -> run publisher(j); j++
        :: else -> break
        od;
        run decider(); run aborter(); run convergence();
        s = 0; j = 0
    }
}
