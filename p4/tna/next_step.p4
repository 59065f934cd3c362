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
        }
        actions = { drop_it; pass_again; result_to_workers; result_to_sender; }
        const entries = {
#if ONE_WORD
            (pass_t.FIRST, verdict_t.COMPLETE): pass_again(pass_t.HIGH);
            (pass_t.FIRST, verdict_t.FORWARDED): pass_again(pass_t.HIGH);
            (pass_t.FIRST, verdict_t.RESEND): pass_again(pass_t.LOW);
            (pass_t.FIRST, verdict_t.FORWARDED_AGAIN): pass_again(pass_t.LOW);
            (pass_t.LOW, verdict_t.RESEND): pass_again(pass_t.HIGH);
            (pass_t.LOW, verdict_t.FORWARDED_AGAIN): pass_again(pass_t.HIGH);
#endif
            (pass_t.TRANSLATED, _): pass_again(pass_t.ANSWER);
            (LAST_PASS, verdict_t.COMPLETE): result_to_workers();
            (LAST_PASS, verdict_t.RESEND): result_to_sender();
            (pass_t.ANSWER, verdict_t.ANSWERED): result_to_workers();
        }
        const default_action = drop_it;
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
        if (meta.pass == LAST_PASS &&
            (meta.verdict == verdict_t.FORWARDED || meta.verdict == verdict_t.FORWARDED_AGAIN)) {
            parent.apply();
        } else {
            next_step.apply();
        }
    }
}

#endif  // P4_TNA_NEXT_STEP_P4_
