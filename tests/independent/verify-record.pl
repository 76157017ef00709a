#!/usr/bin/perl
# Verifies one record of agent-container by docs/record-format.md alone: nothing of the tool's own code is used.
#
#   perl verify-record.pl DIRECTORY KEYS.pub
#
# Prints what is wrong and the verdict. Exit status: 0 verified, 5 tampered, 6 cannot be verified, 2 usage. Decisions are
# not decided again: that takes the rules of a policy. Needs Perl's core modules and openssl 3.
use strict;
use warnings;
use Digest::SHA qw(sha256 sha256_hex hmac_sha256_hex);
use File::Temp  ();
use JSON::PP    ();
use MIME::Base64 qw(encode_base64 decode_base64);

@ARGV == 2 or usage('usage: verify-record.pl DIRECTORY KEYS.pub');
my ($record, $key_file) = @ARGV;
my $ED25519 = pack 'H*', '302a300506032b6570032100';    # SubjectPublicKeyInfo up to the 32 bytes of the key
my $json    = JSON::PP->new->utf8->allow_nonref;
my %found   = (tampered => [], cannot => []);

sub usage { print STDERR "@_\n"; exit 2 }
sub tampered { push @{ $found{tampered} }, "@_"; return }
sub cannot { push @{ $found{cannot} }, "@_"; return }
sub plain { return -f $_[0] && !-l $_[0] }    # not a link, nor a FIFO that would hold us up
sub slurp { plain($_[0]) && open my $in, '<:raw', $_[0] or return; local $/ = undef; return scalar <$in> }
sub parsed { my $value = eval { $json->decode($_[0]) }; return ref $value eq 'HASH' ? $value : undef }
sub compact { return JSON::PP->new->ascii->canonical->allow_nonref->encode($_[0]) }
sub same { return compact($_[0]) eq compact($_[1]) }

sub verdict {
    print "tampered: $_\n" for @{ $found{tampered} };
    print "cannot be verified: $_\n" for @{ $found{cannot} };
    my $code = @{ $found{tampered} } ? 5 : @{ $found{cannot} } ? 6 : 0;
    print { 0 => 'verified', 5 => 'tampered', 6 => 'cannot be verified' }->{$code}, "\n";
    exit $code;
}

sub signature_fits {
    my ($key, $signature, $message) = @_;
    my @files = map { my $file = File::Temp->new; binmode $file; print {$file} $_; close $file; $file }
      ($ED25519 . $key, $signature, $message);
    open my $openssl, '-|', qw(openssl pkeyutl -verify -pubin -keyform DER -rawin), '-inkey', $files[0]->filename,
      '-sigfile', $files[1]->filename, '-in', $files[2]->filename or usage("no openssl: $!");
    my @said = <$openssl>;
    return close $openssl;
}

sub unbase64 { my $data = decode_base64($_[0] // ''); return encode_base64($data, '') eq ($_[0] // '') ? $data : '' }

sub files_below {    # everything that is no directory; a link to one is no directory
    my ($top, $prefix) = @_;
    opendir my $handle, "$top/$prefix" or return;
    return map { my $name = "$prefix$_"; -d "$top/$name" && !-l "$top/$name" ? files_below($top, "$name/") : $name }
      grep { !/\A\.\.?\z/ } readdir $handle;
}

# --- the manifest and its signature
my $pem = slurp($key_file) // usage("cannot read $key_file");
my @keys = map { substr $_, 12 } grep { length == 44 && index($_, $ED25519) == 0 }
  map { decode_base64($_) } $pem =~ /-----BEGIN PUBLIC KEY-----(.*?)-----END PUBLIC KEY-----/gs;
@keys or usage("$key_file holds no Ed25519 public key in PEM");
my $written = slurp("$record/manifest.json");
defined $written or do { cannot('manifest.json: not there'); verdict() };
my $manifest = parsed($written);
if (($manifest->{schema} // '') ne 'agent-container/manifest/1' || grep { ref ne 'HASH' } @$manifest{qw(files chain)}) {
    tampered('manifest.json: not a manifest');
    verdict();
}
tampered('manifest.json: not spelled as it was written')
  if $written ne JSON::PP->new->ascii->canonical->indent->indent_length(2)->space_after->encode($manifest);
my ($signer, $signature) = (unbase64($manifest->{host_key}), unbase64($manifest->{signature}));
my %signed = %$manifest;
delete $signed{signature};
tampered('manifest.json: the signature does not fit') if !signature_fits($signer, $signature, compact(\%signed));
cannot('manifest.json: signed by another host key') if !grep { $_ eq $signer } @keys;

# --- every file of the record
my %there;
for my $name (grep { $_ ne 'manifest.json' } files_below($record, '')) {
    my ($path, $text) = ("$record/$name", $name);
    utf8::decode($text);
    $there{$text} = 1;
    my $claimed = $manifest->{files}{$text};
    if (!plain($path)) { tampered("$name: not a regular file") }
    elsif (ref $claimed ne 'HASH') { tampered("$name: not in the manifest") }
    elsif (-s $path != $claimed->{bytes} || Digest::SHA->new(256)->addfile($path, 'b')->hexdigest ne $claimed->{sha256}) {
        tampered("$name: another digest");
    }
}
$there{$_} or tampered("$_: missing") for keys %{ $manifest->{files} };

# --- what the record says of itself
my $chain = $manifest->{chain};
my $host = (parsed(slurp("$record/record.json") // '') || {})->{host} || {};
tampered('record.json: of another run, session or chain than the manifest')
  if !same([@$host{qw(run session)}, $host->{egress}{chain_head}], [$manifest->{run}, @$chain{qw(session head)}]);

# --- the chain of receipts
defined $chain->{key} or do { cannot("receipts.jsonl: the chain's key is not published"); verdict() };
my ($key, $head, $length, $seal) = (pack('H*', $chain->{key}), '0' x 64, 0, undef);
my (%counts, %digests, %answers, %allowed, @dialled, @named);
(plain("$record/receipts.jsonl") && open my $lines, '<:raw', "$record/receipts.jsonl") or do { tampered('receipts.jsonl: gone'); verdict() };
while (my $line = <$lines>) {
    my $where = "receipts.jsonl:$.";
    my ($body, $mac) = $line =~ /\A(.*),"mac":"([0-9a-f]{64})"\}\n\z/s;
    my $row = defined $body && length $line <= 1025 ? parsed("$body}") : undef;
    if (!$row || $seal || ($row->{seq} // '') ne $length + 1 || hmac_sha256_hex("$head$body}", $key) ne $mac) {
        tampered("$where: not the next link of the chain");
        verdict();
    }
    ($length, $head, $key) = ($length + 1, $mac, sha256('ratchet' . $key));
    my ($kind, $action) = ($row->{kind}, $row->{action} // '');
    tampered("$where: a chain begins with its one open") if ($kind eq 'open') != ($length == 1);
    tampered("$where: the receipts of another session") if $kind eq 'open' && $row->{session} ne $chain->{session};
    if ($kind eq 'seal') {
        $seal = $row;
        tampered("$where: other totals than those counted") if $row->{length} != $length - 1 || !same($row->{totals}, \%counts);
    }
    $counts{$kind}++;
    $counts{"$kind.$action"} += $row->{count} // 1 if defined $row->{action};
    $digests{ $row->{policy} } = 1 if $kind =~ /\A(?:open|policy)\z/;
    push @named, [$where, $row->{policy}] if $action eq 'allow' && $kind =~ /\A(?:decision|lookup|git)\z/;
    $allowed{"$row->{host} $row->{port}"} = 1 if $action eq 'allow' && $kind eq 'decision';
    push @dialled, [$where, @$row{qw(address port)}] if $kind eq 'connection';
    if ($kind eq 'answer') { $answers{$_}{ $row->{name} } = 1 for @{ $row->{addresses} } }
}
cannot("receipts.jsonl: no seal, so nothing past receipt $length is vouched for") if !$seal;
tampered('manifest.json: another head, length or seal than the chain has')
  if $chain->{head} ne $head || $chain->{length} != $length || !!$chain->{sealed} != !!$seal;

# --- what the receipts rest on
for my $digest (sort keys %digests) {
    my ($hex) = $digest =~ /\Asha256:([0-9a-f]{64})\z/ or do { cannot("policy $digest: not there"); next };
    my $policy = slurp("$record/policies/$hex.json");
    if (!defined $policy) { cannot("policies/$hex.json: not there") }
    elsif (sha256_hex($policy) ne $hex) { tampered("policies/$hex.json: another digest than its name") }
}
my %short = map { substr($_, 7, 16) => 1 } keys %digests;
$short{ $_->[1] // '' } or tampered("$_->[0]: allowed under a policy that was never in force") for @named;
for my $flow (@dialled) {
    my ($where, $address, $port) = @$flow;
    next if "$address $port" eq '127.0.0.1 3131' || $allowed{"$address $port"};
    next if grep { $allowed{"$_ $port"} } keys %{ $answers{$address} || {} };
    tampered("$where: $address:$port was dialled, and no receipt says why");
}
verdict();
