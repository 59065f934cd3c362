// SPDX-License-Identifier: Apache-2.0
// The verdict decides about the packet: it is dropped, or passes once more, or becomes the result, or our contribution
// to the parent.
#ifndef P4_TNA_NEXT_STEP_P4_
#define P4_TNA_NEXT_STEP_P4_

#include "../addressing.p4"
#include "metadata.p4"

#if ONE_WORD
#define LAST_PASS pass_t.HIGH
#else
#define LAST_PASS pass_t.FIRST
#endif

control NextStep(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t arrival,
                 inout ingress_intrinsic_metadata_for_deparser_t departure,
                 inout ingress_intrinsic_metadata_for_tm_t manager) {
    action drop_it() {
        departure.drop_ctl = 1;
        meta.forward = 0;
    }

    action pass_again(pass_t pass) {
        meta.forward = 0;
        meta.recirculation.setValid();
        meta.recirculation.pass = pass;
        meta.recirculation.verdict = meta.verdict;
        manager.ucast_egress_port = arrival.ingress_port[8:7] ++ (bit<7>)RECIRCULATION_PORT;
        manager.bypass_egress = 1;
    }

    action result_to_workers() {
        make_result(hdr);
        meta.copy.setValid();
        meta.copy.result = 1;
        meta.needs.setValid();
        meta.needs.workers = meta.needing;
        manager.mcast_grp_a = meta.group;
        meta.forward = 0;
    }
    // To where the packet came from. On Tofino 1 it has passed again since, and that port is forgotten: the MAC address
    // leads there, or, if it isn't listed, all ports do, of which only the recirculation port is left out then.
    action result_to_sender() {
        make_result(hdr);
        address_to(hdr, hdr.ethernet.src_mac, hdr.ipv4.src_ip, hdr.udp.src_port);
#if !ONE_WORD
        meta.forward = 0;
        manager.ucast_egress_port = arrival.ingress_port;
        manager.bypass_egress = 1;
#endif
    }
    table next_step {
        key = {
            meta.pass: exact;
            meta.verdict: ternary;
            hdr.passing.flags: ternary;
            meta.needing: ternary;
        }
        actions = { drop_it; pass_again; result_to_workers; result_to_sender; }
        const entries = {
            // Where no lanes are held, or needed, one pass is enough.
#if ONE_WORD
            (pass_t.FIRST, verdict_t.COMPLETE, HELD &&& HELD, _): pass_again(pass_t.HIGH);
            (pass_t.FIRST, verdict_t.COMPLETE, _, _): result_to_workers();
            (pass_t.FIRST, verdict_t.FORWARDED, _, _): pass_again(pass_t.HIGH);
            (pass_t.FIRST, verdict_t.RESEND, _, 0): result_to_sender();
            (pass_t.FIRST, verdict_t.RESEND, HELD &&& HELD, _): pass_again(pass_t.LOW);
            (pass_t.FIRST, verdict_t.RESEND, _, _): result_to_sender();
            (pass_t.FIRST, verdict_t.FORWARDED_AGAIN, _, _): pass_again(pass_t.LOW);
            (pass_t.LOW, verdict_t.RESEND, _, _): pass_again(pass_t.HIGH);
            (pass_t.LOW, verdict_t.FORWARDED_AGAIN, _, _): pass_again(pass_t.HIGH);
#endif
            (pass_t.TRANSLATED, _, NO_RESULT &&& NO_RESULT, _): pass_again(pass_t.ASK);
            (pass_t.TRANSLATED, _, _, _): pass_again(pass_t.ANSWER);
            (pass_t.ASK, _, _, 0): pass_again(pass_t.ANSWER);
            (LAST_PASS, verdict_t.COMPLETE, _, _): result_to_workers();
            (LAST_PASS, verdict_t.RESEND, _, _): result_to_sender();
            (pass_t.ANSWER, verdict_t.ANSWERED, _, _): result_to_workers();
        }
        const default_action = drop_it;
        size = 32;
    }

    // A packet leaves with lanes if some are held, and its receiver needs them.
    action whole(bit<5> flags) {
        hdr.passing.flags[7:3] = flags;
        hdr.udp.udp_bytes = UDP_BYTES;
        hdr.ipv4.total_bytes = IPV4_BYTES;
    }
    action bare(bit<5> flags) {
        hdr.passing.flags[7:3] = flags;
        hdr.lanes.setInvalid();
        hdr.udp.udp_bytes = BARE_UDP_BYTES;
        hdr.ipv4.total_bytes = BARE_IPV4_BYTES;
    }
    table shape {
        key = {
            meta.verdict: exact;
            hdr.passing.flags: ternary;
            meta.needing: ternary;
        }
        actions = { whole; bare; @defaultonly NoAction; }
        const entries = {
            // The flags are the upper five: 1 is BARE, 2 is NO_RESULT. Copies of a result get them in egress.
            (verdict_t.RESEND, _, 0): bare(3);
            (verdict_t.RESEND, HELD &&& HELD, _): whole(0);
            (verdict_t.RESEND, _, _): bare(1);
            (verdict_t.COMPLETE, HELD &&& HELD, _): whole(0);
            (verdict_t.COMPLETE, _, _): bare(1);
            (verdict_t.ANSWERED, HELD &&& HELD, _): whole(0);
            (verdict_t.ANSWERED, _, _): bare(1);
            (verdict_t.FORWARDED, HELD &&& HELD, 0): whole(2);
            (verdict_t.FORWARDED, HELD &&& HELD, _): whole(0);
            (verdict_t.FORWARDED, _, 0): bare(3);
            (verdict_t.FORWARDED, _, _): bare(1);
            (verdict_t.FORWARDED_AGAIN, HELD &&& HELD, 0): whole(2);
            (verdict_t.FORWARDED_AGAIN, HELD &&& HELD, _): whole(0);
            (verdict_t.FORWARDED_AGAIN, _, 0): bare(3);
            (verdict_t.FORWARDED_AGAIN, _, _): bare(1);
        }
        const default_action = NoAction;
        size = 16;
    }

    // The sum becomes one contribution; `slot_shift` is the parent's first slot minus ours, modulo 2^16.
    @id(7) action sum_to_parent(bit<16> job, bit<16> epoch, bit<16> worker, bit<16> slot_shift, mac_t mac, ip_t ip,
                         bit<16> udp_port) {
        hdr.passing.job = job;
        hdr.passing.epoch = epoch;
        hdr.passing.worker = worker;
        hdr.passing.slot = hdr.passing.slot + slot_shift;
        address_to(hdr, mac, ip, udp_port);
    }
    @id(6) table parent {
        key = { hdr.passing.job: exact @name("job"); }
        actions = { sum_to_parent; @defaultonly drop_it; }
        const default_action = drop_it;
        size = JOBS_MAX;
    }

    apply {
        if ((meta.pass == LAST_PASS || hdr.passing.flags[3:3] == 0) &&
            (meta.verdict == verdict_t.FORWARDED || meta.verdict == verdict_t.FORWARDED_AGAIN)) {
            parent.apply();
        } else {
            next_step.apply();
        }
        shape.apply();
    }
}

#endif  // P4_TNA_NEXT_STEP_P4_
